"""Contenders: the policies as their sources run them, each measured on the same requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from app.bench.measurement import Measurement
from app.bench.report import Figures
from app.bench.runs import Plan, run_all
from app.bench.scripts import Recorded, Synthetic
from app.bench.setting import Setting
from app.bench.testbed import Testbed, in_virtual_time
from engine.api.config import EngineConfig
from engine.api.knobs import Knobs
from engine.api.telemetry import StepRecord
from engine.batch.shape import ModelShape
from engine.simulation.cost import Roofline
from engine.simulation.devices import Device, named_device
from engine.simulation.shapes import named_shape
from engine.simulation.simulation import envelope

POLICIES = ("static", "dynamic", "orca", "prefill_first", "stall_free")
PADDED = frozenset({"static", "dynamic"})
ON_DEMAND = frozenset({"prefill_first", "stall_free"})


@dataclass(frozen=True, slots=True)
class Box:
    """A model on a device in virtual time. Padding and bubbles of static batches are costed."""

    name: str
    device: Device
    shape: ModelShape
    config: EngineConfig

    @staticmethod
    def of(names: str, *, max_model_len: int, kv_slots: int | None = None) -> Box:
        """The box of a device and a model of `engine.simulation`, named `DEVICE:MODEL`."""
        device_name, _, model_name = names.partition(":")
        device, shape = named_device(device_name), named_shape(model_name)
        config = envelope(
            device,
            shape,
            max_model_len=max_model_len,
            max_num_batched_tokens=16_384,
            kv_slots=kv_slots,
        )
        return Box(names, device, shape, config)

    def testbed(self, policy: str) -> Testbed:
        cost = Roofline(self.device, self.shape, charge_padding=policy in PADDED)
        return in_virtual_time(self.config, self.shape, cost, {})


@dataclass(slots=True)
class Tally:
    """Decodes of a run, and those that a padded batch computes for members that have ended."""

    decodes: int = 0
    bubbles: int = 0

    def add(self, record: StepRecord) -> None:
        self.decodes += record.decode_tokens
        self.bubbles += record.bubble_tokens


@dataclass(frozen=True, slots=True)
class Result:
    """One workload under one policy.

    Attributes:
        bubbles: share of the decode tokens of a padded batch that belong to ended members.
    """

    policy: str
    figures: Figures
    measured: Measurement = field(repr=False)
    bubbles: float

    @property
    def seconds(self) -> float:
        return self.figures["duration"]

    @property
    def steps(self) -> float:
        return self.figures["steps"]

    @property
    def output_throughput(self) -> float:
        return self.figures["output_throughput"]


def largest_batch(config: EngineConfig, most_tokens: int) -> int:
    """Sequences of `most_tokens` tokens that the pool holds: what a batch that reserves can be."""
    return config.num_blocks // config.blocks_for(most_tokens)


def knobs_of(policy: str, config: EngineConfig, most_tokens: int, chunk_budget: int) -> Knobs:
    """A policy as its source has it.

    Static batches are as large as the pool allows for what requests announce. Prompts run whole,
    but under `stall_free`. Only what gives blocks on demand keeps vLLM's watermark of 1 %, which
    would cost the others a member of the batch. `prefill_first` interrupts at once, as vLLM V0.
    Prefixes are not cached, since none are equal.

    Args:
        most_tokens: the most tokens of one sequence, as announced.
        chunk_budget: the most tokens of a step of `stall_free`.
    """
    whole = config.max_num_batched_tokens
    return Knobs(
        policy=policy,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=chunk_budget if policy == "stall_free" else whole,
        static_batch_size=largest_batch(config, most_tokens),
        watermark=0.01 if policy in ON_DEMAND else 0.0,
        waiting_served_ratio=0.0,
        prefix_caching=False,
        queue_limit=1_000_000,
    )


def measure(
    policy: str,
    testbed: Testbed,
    workload: Synthetic | Recorded,
    *,
    seed: int,
    concurrency: int | None = None,
    changes: Mapping[str, object] | None = None,
    chunk_budget: int = 2048,
) -> Result:
    """Run a workload under a policy; every policy gets the same requests for the same seed.

    Args:
        changes: knobs that differ from `knobs_of`.
    """
    knobs = knobs_of(policy, testbed.config, workload.most_tokens, chunk_budget)
    knobs = replace(testbed, knobs=knobs).with_knobs(changes or {})
    plan = Plan(
        workload=workload,
        settings=[(Setting(policy, {}), knobs)],
        concurrency=concurrency,
        seed=seed,
        warmups=0,
    )
    tally = Tally()
    (run,) = run_all(plan, testbed, on_record=tally.add)
    # A run that lost requests would look fast.
    assert run.figures["completed"] == workload.num_requests, run.measured.errors
    bubbles = tally.bubbles / max(tally.decodes + tally.bubbles, 1)
    return Result(policy, run.figures, run.measured, bubbles)
