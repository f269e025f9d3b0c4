"""Knobs: the live policy, everything that can change between two steps."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Literal, TypeAlias

from engine.config import EngineConfig
from engine.errors import InvalidConfigError

KnobValue: TypeAlias = bool | int | float | str

ORDER_NAMES = ("priority", "fcfs", "shortest", "fair")
VICTIM_NAMES = ("lowest_priority", "latest", "least_computed")
FILL_NAMES = ("idle", "full")


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """Live policy. `KNOB_SPECS` says what each means, `knob_range` what it may be."""

    policy: str = "stall_free"
    order: str = "priority"
    victim: str = "lowest_priority"
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 512
    prefill_chunk: int = 0
    max_partial_prefills: int = 0
    watermark: float = 0.01
    prefix_caching: bool = True
    static_batch_size: int = 8
    static_fill: str = "idle"
    batch_window_ms: float = 100.0
    waiting_served_ratio: float = 0.3
    max_waiting_tokens: int = 20
    ttft_target_ms: float = 1000.0
    tpot_target_ms: float = 100.0
    ageing: float = 60.0
    user_weights: str = ""
    queue_limit: int = 1000
    draining: bool = False
    paused: bool = False


@dataclass(frozen=True, slots=True)
class KnobSpec:
    """What a knob means, for every front end.

    Attributes:
        step: how far one turn goes; a float below 1 adds, 2 doubles and halves; 0 for switches.
        acts: `always`, or only under a policy or an order that names it among what it uses.
    """

    name: str
    meaning: str
    unit: str = ""
    step: float = 0
    acts: Literal["always", "policy", "order"] = "always"


KNOB_SPECS: tuple[KnobSpec, ...] = (
    KnobSpec("policy", "which batching policy composes each step"),
    KnobSpec("order", "in which order waiting requests are admitted"),
    KnobSpec("victim", "which running request is preempted when the pool is empty"),
    KnobSpec("max_num_seqs", "most sequences running at once", "sequences", 2),
    KnobSpec("max_num_batched_tokens", "token budget of one step", "tokens", 2),
    KnobSpec(
        "prefill_chunk",
        "most prompt tokens of one request a step; 0 is no cap",
        "tokens",
        2,
        "policy",
    ),
    KnobSpec(
        "max_partial_prefills",
        "most prompts that are partly computed at once; 0 is no limit",
        "prompts",
        2,
        "policy",
    ),
    KnobSpec("watermark", "share of the pool kept free at admission", "of pool", 0.01),
    KnobSpec("prefix_caching", "reuse the blocks of equal prefixes"),
    KnobSpec("static_batch_size", "requests of a static or dynamic batch", "requests", 2, "policy"),
    KnobSpec(
        "static_fill",
        "start a static batch with what is there when idle, or only when full",
        acts="policy",
    ),
    KnobSpec(
        "batch_window_ms",
        "a dynamic batch starts this long after its first request, if not full before",
        "ms",
        2,
        "policy",
    ),
    KnobSpec(
        "waiting_served_ratio",
        "waiting over running requests at which prompts interrupt decodes; 0 is at once",
        "",
        0.1,
        "policy",
    ),
    KnobSpec(
        "max_waiting_tokens",
        "tokens of those that run after which prompts interrupt whatever the ratio",
        "tokens",
        2,
        "policy",
    ),
    KnobSpec("ttft_target_ms", "time to first token that counts as good", "ms", 2),
    KnobSpec("tpot_target_ms", "time per output token that counts as good", "ms", 2),
    KnobSpec(
        "ageing",
        "waiting worth one level of priority, or 1,000 tokens of prompt; 0 is no ageing",
        "s",
        2,
        "order",
    ),
    KnobSpec(
        "user_weights",
        "shares of users under the fair order, such as alice=2,bob=0.5; others have 1",
        acts="order",
    ),
    KnobSpec("queue_limit", "waiting requests above which new ones are refused", "requests", 2),
    KnobSpec("draining", "admit nothing new; what was admitted ends"),
    KnobSpec("paused", "plan nothing; all stand still"),
)


@dataclass(frozen=True, slots=True)
class KnobRange:
    """What a knob may be: a choice of values, text in a form, or else a closed interval.

    Attributes:
        form: what a text has to look like, in words.
    """

    choices: tuple[KnobValue, ...] = ()
    low: float = 0
    high: float = 0
    form: str = ""

    def __str__(self) -> str:
        if self.choices:
            return "one of " + ", ".join(_show(c) for c in self.choices)
        return self.form or f"from {self.low} to {self.high}"


def knob_range(name: str, config: EngineConfig, policies: tuple[str, ...]) -> KnobRange:
    """What knob `name` may be within the envelope."""
    ranges = {
        "policy": KnobRange(choices=policies),
        "order": KnobRange(choices=ORDER_NAMES),
        "victim": KnobRange(choices=VICTIM_NAMES),
        "max_num_seqs": KnobRange(low=1, high=config.max_num_seqs),
        "max_num_batched_tokens": KnobRange(low=1, high=config.max_num_batched_tokens),
        "prefill_chunk": KnobRange(low=0, high=config.max_num_batched_tokens),
        "max_partial_prefills": KnobRange(low=0, high=4096),
        "watermark": KnobRange(low=0.0, high=0.5),
        # Not bound to the envelope: a batch larger than the slots starts when those are filled.
        "static_batch_size": KnobRange(low=1, high=4096),
        "static_fill": KnobRange(choices=FILL_NAMES),
        "batch_window_ms": KnobRange(low=0.0, high=60_000.0),
        "waiting_served_ratio": KnobRange(low=0.0, high=10.0),
        "max_waiting_tokens": KnobRange(low=1, high=10_000),
        "ttft_target_ms": KnobRange(low=1.0, high=600_000.0),
        "tpot_target_ms": KnobRange(low=1.0, high=600_000.0),
        "ageing": KnobRange(low=0.0, high=86_400.0),
        "user_weights": KnobRange(form="a list such as alice=2,bob=0.5, of weights above 0"),
        "queue_limit": KnobRange(low=1, high=1_000_000),
    }
    return ranges.get(name, KnobRange(choices=(True, False)))


def parse_weights(text: str) -> dict[str, float]:
    """Weights by user, from `alice=2,bob=0.5`.

    Raises:
        ValueError: it has another form.
    """
    weights = {}
    for part in filter(None, re.split(r"\s*,\s*", text.strip())):
        user, equals, number = part.rpartition("=")
        weight = float(number)
        if not equals or not user.strip() or not 0 < weight < math.inf:
            raise ValueError(f"{part} is no weight")
        weights[user.strip()] = weight
    return weights


def change_knobs(
    knobs: Knobs,
    changes: Mapping[str, object],
    config: EngineConfig,
    policies: tuple[str, ...],
) -> Knobs:
    """The knobs with `changes` made, all or none.

    Raises:
        InvalidConfigError: an unknown knob, a value of another type, or one outside the envelope.
    """
    names = {f.name for f in fields(Knobs)}
    checked: dict[str, KnobValue] = {}
    for name, value in changes.items():
        if name not in names:
            raise InvalidConfigError(
                f"{name} is no knob; allowed are {', '.join(spec.name for spec in KNOB_SPECS)}",
                name,
            )
        checked[name] = _check(name, value, knob_range(name, config, policies))
    changed = replace(knobs, **checked)  # type: ignore[arg-type]  # _check made the types right
    if changed.max_num_batched_tokens < changed.max_num_seqs:
        stated = "max_num_batched_tokens" in checked
        raise InvalidConfigError(
            f"max_num_batched_tokens is {changed.max_num_batched_tokens}; it must be at least "
            f"max_num_seqs ({changed.max_num_seqs}), one decode token for each sequence",
            "max_num_batched_tokens" if stated else "max_num_seqs",
        )
    return changed


def _check(name: str, value: object, allowed: KnobRange) -> KnobValue:
    default = getattr(Knobs(), name)
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
        raise InvalidConfigError(f"{name} is {_show(value)}; it must be {kind}{allowed}", name)
    assert isinstance(value, (bool, int, float, str))
    return float(value) if isinstance(default, float) else value


def _has_weights(text: str) -> bool:
    try:
        parse_weights(text)
    except ValueError:
        return False
    return True


def _show(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)
