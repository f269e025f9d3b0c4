"""Kinds: how long each kind of operation of a forward pass takes, by the native kernels' clock."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from engine.api.telemetry import StepRecord
from engine.batch.shape import ModelShape

# For each kind of operation: how often it ran in a step, and for how many seconds.
Profile: TypeAlias = Mapping[str, tuple[int, float]]

# The kinds that have a column of their own, and its name. The first two have rates of reading, too.
# All other kinds are summed up.
_NAMES = {
    "linear": "products",
    "attend": "attention",
    "norm": "norm",
    "rotate": "rotate",
    "store": "store",
}
COLUMNS = (*_NAMES.values(), "others", "outside", "GB/s", "KV GB/s")
HEADLINE = (
    "median milliseconds of a decode step by kind of operation, as the kernels' clock has it;\n"
    "outside: the rest of forward; GB/s: of weights in products, of keys and values in attention"
)


def cells(steps: Sequence[tuple[StepRecord, Profile]], shape: ModelShape) -> list[str]:
    """Medians of some decode steps, one for each of `COLUMNS`."""
    numbers = shape.num_active_params + shape.hidden_size * shape.vocab_size
    weight_bytes = numbers * shape.dtype_bytes
    times, rates = [], []
    for record, profile in steps:
        costs = {kind: seconds for kind, (_, seconds) in profile.items()}
        named = [costs.pop(kind, 0.0) for kind in _NAMES]
        others = sum(costs.values())
        times.append([*named, others, record.times.forward - others - sum(named)])
        products, attention, *_ = named
        rates.append([weight_bytes / products, _kv_bytes(record, shape) / attention])
    return [f"{1e3 * seconds:.3f}" for seconds in _medians(times)] + [
        f"{1e-9 * rate:.1f}" for rate in _medians(rates)
    ]


def _medians(rows: Sequence[Sequence[float]]) -> list[float]:
    return [statistics.median(column) for column in zip(*rows, strict=True)]


def _kv_bytes(record: StepRecord, shape: ModelShape) -> int:
    """Bytes of keys and values that a decode step reads."""
    written = record.decode_tokens * shape.kv_bytes_per_token
    return record.cost.bytes - shape.weight_bytes - written
