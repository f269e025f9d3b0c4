"""Knobs: the live policy, everything that can change between two steps."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from engine.api.config import EngineConfig
from engine.api.errors import InvalidConfigError
from engine.api.knob_spec import (
    SWITCH,
    KnobRange,
    KnobSpec,
    KnobValue,
    format_value,
    knob,
    specs_of,
)

ORDER_NAMES = ("priority", "fcfs", "shortest", "fair")
VICTIM_NAMES = ("lowest_priority", "latest", "least_computed")
PREEMPTION_NAMES = ("auto", "recompute", "swap")
FILL_NAMES = ("idle", "full")
# Every change of a knob is recorded, with its text before and after, and sent in control messages.
MAX_WEIGHTS_LENGTH = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """The live policy. The line that declares a knob states its whole `KnobSpec`. Some knobs act
    only under some policies or orders, which name them in `uses`, as a user's own policy can.
    """

    policy: str = knob(
        "stall_free",
        "which batching policy composes each step",
        lambda _config, policies: KnobRange(choices=policies),
    )
    order: str = knob(
        "priority",
        "in which order waiting requests are admitted",
        KnobRange(choices=ORDER_NAMES),
    )
    victim: str = knob(
        "lowest_priority",
        "which running request is preempted when the pool is empty",
        KnobRange(choices=VICTIM_NAMES),
    )
    preemption: str = knob(
        "auto",
        "whether a victim is recomputed or swapped to host memory; auto is the cheaper of them",
        KnobRange(choices=PREEMPTION_NAMES),
    )
    max_num_seqs: int = knob(
        32,
        "most sequences running at once",
        lambda config, _policies: KnobRange(low=1, high=config.max_num_seqs),
        "sequences",
        2,
    )
    max_num_batched_tokens: int = knob(
        512,
        "token budget of one step",
        lambda config, _policies: KnobRange(low=1, high=config.max_num_batched_tokens),
        "tokens",
        2,
    )
    prefill_chunk: int = knob(
        0,
        "most prompt tokens of one request in a step; 0 is no cap",
        lambda config, _policies: KnobRange(low=0, high=config.max_num_batched_tokens),
        "tokens",
        2,
        acts="policy",
    )
    max_partial_prefills: int = knob(
        0,
        "most prompts that are partly computed at once; 0 is no limit",
        KnobRange(low=0, high=4096),
        "prompts",
        2,
        acts="policy",
    )
    watermark: float = knob(
        0.01,
        "share of the pool kept free at admission",
        KnobRange(low=0.0, high=0.5),
        "of pool",
        0.01,
    )
    prefix_caching: bool = knob(True, "reuse the blocks of equal prefixes", SWITCH)
    # The envelope does not bound this: a batch larger than the slots starts when they are filled.
    static_batch_size: int = knob(
        8,
        "requests of a static or dynamic batch",
        KnobRange(low=1, high=4096),
        "requests",
        2,
        acts="policy",
    )
    static_fill: str = knob(
        "idle",
        "idle starts a static batch with the requests that wait, full only with a full one",
        KnobRange(choices=FILL_NAMES),
        acts="policy",
    )
    batch_window_ms: float = knob(
        100.0,
        "a dynamic batch starts this long after its first request, if not full before",
        KnobRange(low=0.0, high=60_000.0),
        "ms",
        2,
        acts="policy",
    )
    waiting_served_ratio: float = knob(
        0.3,
        "ratio of waiting to running requests at which prompts interrupt decodes; 0 is at once",
        KnobRange(low=0.0, high=10.0),
        step=0.1,
        acts="policy",
    )
    max_waiting_tokens: int = knob(
        20,
        "tokens of each running request after which prompts interrupt, whatever the ratio",
        KnobRange(low=1, high=10_000),
        "tokens",
        2,
        acts="policy",
    )
    ttft_target_ms: float = knob(
        1000.0,
        "time to first token that counts as good",
        KnobRange(low=1.0, high=600_000.0),
        "ms",
        2,
    )
    tpot_target_ms: float = knob(
        100.0,
        "time per output token that counts as good",
        KnobRange(low=1.0, high=600_000.0),
        "ms",
        2,
    )
    ageing: float = knob(
        60.0,
        "waiting time worth one level of priority, or 1,000 prompt tokens; 0 is no ageing",
        KnobRange(low=0.0, high=86_400.0),
        "s",
        2,
        acts="order",
    )
    user_weights: str = knob(
        "",
        "shares of users under the fair order, such as alice=2,bob=0.5; others have 1",
        KnobRange(
            form="a list such as alice=2,bob=0.5, of weights above 0, in at most "
            f"{MAX_WEIGHTS_LENGTH:,} characters"
        ),
        acts="order",
    )
    queue_limit: int = knob(
        1000,
        "waiting requests above which new ones are refused",
        KnobRange(low=1, high=1_000_000),
        "requests",
        2,
    )
    draining: bool = knob(False, "admit no new requests; admitted ones run to their end", SWITCH)
    paused: bool = knob(False, "plan no steps; all requests stand still", SWITCH)


KNOB_SPECS = specs_of(Knobs)
_SPECS = {spec.name: spec for spec in KNOB_SPECS}


@dataclass(frozen=True, slots=True)
class KnobState:
    """A knob's current state.

    Attributes:
        requested: the requested value.
        effective: the value in force.
        note: why the two differ, that the policy or order in force ignores the knob, or the reason
            for its start value; else empty.
        allowed: its range.
    """

    spec: KnobSpec
    requested: KnobValue
    effective: KnobValue
    note: str
    allowed: KnobRange

    @property
    def name(self) -> str:
        return self.spec.name


@dataclass(frozen=True, slots=True)
class KnobChange:
    """One entry of the history.

    Attributes:
        time: engine clock, seconds.
        step: the last step planned under `before`.
        undoes: whether it undid an earlier change.
    """

    time: float
    step: int
    who: str
    before: Knobs
    after: Knobs
    undoes: bool = False

    @property
    def changed(self) -> dict[str, tuple[KnobValue, KnobValue]]:
        """The knobs that differ, as name -> (before, after)."""
        return {
            f.name: (getattr(self.before, f.name), getattr(self.after, f.name))
            for f in fields(Knobs)
            if getattr(self.before, f.name) != getattr(self.after, f.name)
        }


def parse_weights(text: str) -> dict[str, float]:
    """Parse weights by user, from `alice=2,bob=0.5`.

    Raises:
        ValueError: the text has another form.
    """
    weights = {}
    for part in filter(None, re.split(r"\s*,\s*", text.strip())):
        user, equals, number = part.rpartition("=")
        weight = float(number)
        if not equals or not user.strip() or not 0 < weight < math.inf:
            raise ValueError(f"{part} is not a weight")
        weights[user.strip()] = weight
    return weights


def change_knobs(
    knobs: Knobs,
    changes: Mapping[str, object],
    config: EngineConfig,
    policies: tuple[str, ...],
) -> Knobs:
    """Apply all of `changes` to the knobs.

    Raises:
        InvalidConfigError: a knob is unknown, or a value is of another type or outside its range.
    """
    checked: dict[str, KnobValue] = {}
    for name, value in changes.items():
        spec = _SPECS.get(name)
        if spec is None:
            raise InvalidConfigError(f"{name} is not a knob; allowed are {', '.join(_SPECS)}", name)
        checked[name] = _check(spec, value, spec.range(config, policies))
    changed = replace(knobs, **checked)  # type: ignore[arg-type]  # _check made the types right
    if changed.max_num_batched_tokens < changed.max_num_seqs:
        stated = "max_num_batched_tokens" in checked
        raise InvalidConfigError(
            f"max_num_batched_tokens is {changed.max_num_batched_tokens}; it must be at least "
            f"max_num_seqs ({changed.max_num_seqs}), one decode token for each sequence",
            "max_num_batched_tokens" if stated else "max_num_seqs",
        )
    return changed


def _check(spec: KnobSpec, value: object, allowed: KnobRange) -> KnobValue:
    default = spec.default
    fits: bool
    if isinstance(default, bool):
        fits = isinstance(value, bool)
    elif allowed.form:
        fits = isinstance(value, str) and _has_weights(value)
    elif isinstance(default, str):
        fits = value in allowed.choices
    else:
        kinds = (int, float) if isinstance(default, float) else (int,)
        fits = (
            isinstance(value, kinds)
            and not isinstance(value, bool)
            and allowed.low <= value <= allowed.high
        )
    if not fits:
        kind = ""
        if not isinstance(default, bool | str) and not isinstance(value, type(default)):
            kind = "a number " if isinstance(default, float) else "an integer "
        raise InvalidConfigError(
            f"{spec.name} is {format_value(value)}; it must be {kind}{allowed}", spec.name
        )
    assert isinstance(value, (bool, int, float, str))
    return float(value) if isinstance(default, float) else value


def _has_weights(text: str) -> bool:
    if len(text) > MAX_WEIGHTS_LENGTH:
        return False
    try:
        parse_weights(text)
    except ValueError:
        return False
    return True
