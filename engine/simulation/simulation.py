"""Simulated: the real core, scheduler and cache over a runner that takes virtual time."""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine.api.config import BLOCK_SIZE, EngineConfig
from engine.api.errors import InvalidConfigError, ModelError
from engine.api.knobs import Knobs
from engine.batch.plan import StepPlan
from engine.batch.shape import ModelShape
from engine.core.core import EngineCore
from engine.simulation.clock import VirtualClock
from engine.simulation.cost import CostModel
from engine.simulation.devices import Device
from engine.simulation.runner import EOS, SimulatedRunner

_DTYPES = {2: "bfloat16", 4: "float32"}


@dataclass(frozen=True, slots=True)
class Simulated:
    """An engine in virtual time. `engine.driving.drive.drive` sends traffic through it."""

    core: EngineCore
    clock: VirtualClock


def build(
    config: EngineConfig,
    knobs: Knobs,
    shape: ModelShape,
    cost: CostModel,
    *,
    name: str = "simulated",
    depth: int = 1,
) -> Simulated:
    """An engine whose steps take as long as `cost` predicts, and whose requests end at
    `min_tokens`.

    Args:
        name: the model's name, for display.
        depth: steps that may be started before the first result is read
            (`engine.batch.plan.Runner`).

    Raises:
        InvalidConfigError: a knob is outside the envelope.
    """
    clock = VirtualClock()
    card = shape.card(config, name=name, architecture="", attention="simulated")
    core = EngineCore(
        config=config,
        runner=SimulatedRunner(clock, cost, depth),
        shape=shape,
        card=card,
        key=name,
        eos_token_ids=frozenset({EOS}),
        knobs=knobs,
        clock=clock,
        swap_rate=_swap_rate(cost, config, shape),
    )
    return Simulated(core, clock)


def _swap_rate(cost: CostModel, config: EngineConfig, shape: ModelShape) -> float:
    """Bytes a second at which blocks are swapped, as a runner measures it; 0 without swaps."""
    if not config.num_host_blocks:
        return 0.0
    idle = StepPlan(step=1, rows=())
    seconds = cost.seconds(replace(idle, swaps_out=((0, 0),))) - cost.seconds(idle)
    return config.block_size * shape.kv_bytes_per_token / seconds if seconds > 0 else 0.0


def least_slots(max_model_len: int) -> int:
    """Token slots of the smallest pool that can hold a sequence of `max_model_len` tokens."""
    return -(-max_model_len // BLOCK_SIZE) * BLOCK_SIZE


def envelope(
    device: Device,
    shape: ModelShape,
    *,
    max_model_len: int,
    max_num_seqs: int = 256,
    max_num_batched_tokens: int = 2048,
    memory_share: float = 0.9,
    kv_slots: int | None = None,
    swap_memory: int = 0,
) -> EngineConfig:
    """The envelope of a model on a device: the pool gets the memory that the weights leave.

    Args:
        memory_share: share of the device's memory for weights and pool, above 0 and at most 1; the
            rest is for the step.
        kv_slots: token slots of the pool, rounded down to whole blocks, regardless of memory. None
            computes them from the memory.
        swap_memory: bytes of host memory for swapped-out sequences.

    Raises:
        InvalidConfigError: an option is outside its range.
        ModelError: one sequence of `max_model_len` tokens does not fit beside the weights.
    """
    if not 0 < memory_share <= 1:
        raise InvalidConfigError(
            f"memory_share is {memory_share}; it must be above 0 and at most 1", "memory_share"
        )
    least = least_slots(max_model_len)
    if kv_slots is None:
        spare = device.memory * memory_share - shape.weight_bytes
        kv_slots = int(spare // shape.kv_bytes_per_token)
        if kv_slots < least:
            memory, weights, sequence = (
                size / 2**30
                for size in (
                    device.memory,
                    shape.weight_bytes,
                    max_model_len * shape.kv_bytes_per_token,
                )
            )
            raise ModelError(
                f"the model does not fit on {device.name}: of its {memory:.0f} GiB "
                f"{memory_share:.0%} may be used, weights take {weights:.1f} GiB and one sequence "
                f"of {max_model_len} tokens {sequence:.1f} GiB"
            )
    elif kv_slots < least:
        raise InvalidConfigError(
            f"kv_slots is {kv_slots}; it must be at least {least}, which is max_model_len "
            f"({max_model_len}) in blocks of {BLOCK_SIZE}",
            "kv_slots",
        )
    return EngineConfig(
        num_blocks=kv_slots // BLOCK_SIZE,
        num_host_blocks=swap_memory // (BLOCK_SIZE * shape.kv_bytes_per_token),
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        dtype=_DTYPES[shape.dtype_bytes],
        device=device.name,
    )
