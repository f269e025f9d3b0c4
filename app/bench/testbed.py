"""Testbed: makes a new engine for every run, on a loaded model or simulated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace

from app.bench.dataset import Encode
from app.settings.settings import Settings
from engine.api.client import ChatMessage
from engine.api.config import BLOCK_SIZE, EngineConfig
from engine.api.errors import InvalidConfigError
from engine.api.knobs import Knobs, change_knobs
from engine.batch.plan import Runner, StepPlan, StepResult
from engine.batch.shape import ModelShape
from engine.core.core import EngineCore
from engine.driving.drive import Clock, WallClock
from engine.scheduling.policies import policy_names
from engine.serving.loading import LoadedModel
from engine.simulation.cost import CostModel, Roofline
from engine.simulation.devices import named_device
from engine.simulation.shapes import named_shape
from engine.simulation.simulation import build, envelope, least_slots

# A full queue would refuse requests, which would change the workload.
_KNOBS = Knobs(queue_limit=1_000_000)


@dataclass(frozen=True, slots=True)
class _Handle:
    """A step of the inner runner. `last` says, for each row that samples, whether its token is the
    last of its sequence."""

    inner: object
    last: tuple[bool, ...]


class EndingRunner:
    """A `Runner` (`engine.batch.plan`) around another one. It ends each sequence at `min_tokens` by
    returning `eos` as its last token. So outputs have the lengths of the workload, and their steps
    cost what the model costs.

    One runner serves several cores, one after the other. At the first step of a new core (steps
    count from 1) it releases the sequences that the previous core left.

    Args:
        inner: the runner that computes the steps.
        eos: the token id that ends a sequence for the core.
    """

    def __init__(self, inner: Runner, eos: int) -> None:
        self._inner = inner
        self._eos = eos
        # For each sequence: the computed length from which its next token is its last.
        self._lengths: dict[int, int] = {}

    @property
    def depth(self) -> int:
        return self._inner.depth

    def start_step(self, plan: StepPlan) -> object:
        if plan.step == 1:
            plan = replace(plan, released=tuple(self._lengths))
        for seq in plan.released:
            self._lengths.pop(seq, None)
        for new in plan.new:
            self._lengths[new.seq] = new.num_prompt_tokens + max(new.sampling.min_tokens, 1) - 1
        last = tuple(
            row.start + row.count >= self._lengths[row.seq] for row in plan.rows if row.samples
        )
        return _Handle(self._inner.start_step(plan), last)

    def result(self, handle: object) -> StepResult:
        assert isinstance(handle, _Handle)
        result = self._inner.result(handle.inner)
        token_ids = tuple(
            self._eos if last and token >= 0 else token
            for token, last in zip(result.token_ids, handle.last, strict=True)
        )
        return replace(result, token_ids=token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Testbed:
    """A real or simulated machine for workloads.

    Attributes:
        config: the engine's envelope.
        shape: the model's shape.
        knobs: the knobs of every run, before the run's changes.
        make: makes a core with an empty cache, and its clock.
        encode: returns the token ids of a prompt with one message; None without a tokenizer.
        about: the model and the device, for the results.
        virtual: whether time is simulated.
    """

    config: EngineConfig
    shape: ModelShape
    knobs: Knobs
    make: Callable[[Knobs], tuple[EngineCore, Clock]]
    encode: Encode | None
    about: Mapping[str, object]
    virtual: bool

    def with_knobs(self, changes: Mapping[str, object]) -> Knobs:
        """The knobs of a run with `changes`.

        Raises:
            InvalidConfigError: a knob is unknown, or a value is outside its range or the envelope.
        """
        return change_knobs(self.knobs, changes, self.config, policy_names())


def of_model(loaded: LoadedModel) -> Testbed:
    """A testbed on a loaded model, in real time. Its runs share the model's runner, one after the
    other."""
    eos = min(loaded.eos_token_ids, default=0)
    runner = EndingRunner(loaded.runner, eos)

    def make(knobs: Knobs) -> tuple[EngineCore, Clock]:
        clock = WallClock()
        core = EngineCore(
            config=loaded.config,
            runner=runner,
            shape=loaded.shape,
            card=loaded.card,
            key=loaded.key,
            eos_token_ids=frozenset({eos}),
            knobs=knobs,
            clock=clock,
            swap_rate=loaded.swap_rate,
        )
        return core, clock

    def encode(text: str) -> list[int]:
        return loaded.codec.encode([ChatMessage("user", text)], None)

    return Testbed(
        config=loaded.config,
        shape=loaded.shape,
        knobs=replace(loaded.knobs, queue_limit=_KNOBS.queue_limit),
        make=make,
        encode=encode,
        about=asdict(loaded.card) | {"padding": "counted, not computed"},
        virtual=False,
    )


def simulated(names: str, settings: Settings, *, charge_padding: bool) -> Testbed:
    """A testbed for a named model on a named device, in virtual time.

    Args:
        names: `DEVICE:MODEL`, by the names of `engine.simulation`.
        settings: provide the envelope. By default a sequence has at most 4,096 tokens, and the
            cache has the blocks that fit into the device's memory.
        charge_padding: whether padding and bubbles of static batches take the time of their
            computation.

    Raises:
        InvalidConfigError: `names` has another form, or names an unknown device or model (`param`
            is then simulate, device or model); or a setting of the envelope is outside its range.
        ModelError: the model does not fit on the device.
    """
    device_name, colon, model_name = names.partition(":")
    if not colon:
        raise InvalidConfigError(
            f"simulate is {names!r}; it must be DEVICE:MODEL, such as h100:llama-8b", "simulate"
        )
    device, shape = named_device(device_name), named_shape(model_name)
    most = settings.max_model_len or 4096
    if settings.num_blocks is not None and settings.num_blocks * BLOCK_SIZE < most:
        raise InvalidConfigError(
            f"num_blocks is {settings.num_blocks}; it must be at least "
            f"{least_slots(most) // BLOCK_SIZE}, for a sequence of {most} tokens (max_model_len)",
            "num_blocks",
        )
    config = envelope(
        device,
        shape,
        max_model_len=most,
        max_num_seqs=settings.max_num_seqs or 256,
        max_num_batched_tokens=settings.max_num_batched_tokens or 2048,
        kv_slots=settings.num_blocks * BLOCK_SIZE if settings.num_blocks else None,
        swap_memory=settings.swap_memory or 0,
    )
    cost = Roofline(device, shape, charge_padding=charge_padding)
    about = {
        "name": model_name,
        "device": asdict(device),
        "padding": "costed" if charge_padding else "counted, not costed",
    }
    return in_virtual_time(config, shape, cost, about)


def in_virtual_time(
    config: EngineConfig, shape: ModelShape, cost: CostModel, about: Mapping[str, object]
) -> Testbed:
    """A testbed in virtual time: each step takes the time that `cost` computes."""

    def make(knobs: Knobs) -> tuple[EngineCore, Clock]:
        made = build(config, knobs, shape, cost)
        return made.core, made.clock

    return Testbed(
        config=config,
        shape=shape,
        knobs=replace(
            _KNOBS,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
        ),
        make=make,
        encode=None,
        about=about,
        virtual=True,
    )
