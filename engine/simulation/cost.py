"""CostModel: predicts how long a step takes. `Roofline` uses a device and a model's shape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from engine.api.config import BLOCK_SIZE
from engine.batch.plan import Row, StepPlan
from engine.batch.shape import ModelShape, StepWork
from engine.simulation.devices import Device


class CostModel(Protocol):
    """Predicts how long steps take."""

    def seconds(self, plan: StepPlan) -> float:
        """Seconds from the start of a step to the start of the next, while there is work."""
        ...

    def seconds_ahead(self, plan: StepPlan) -> Iterator[float]:
        """Those of a plan of decodes, and of each plan after it that has the same rows for the next
        token of each sequence, without end.
        """
        ...


class Roofline:
    """Each group of operators takes as long as its arithmetic or its memory traffic, whichever is
    longer (Williams, Waterman, Patterson, "Roofline", CACM 2009, section 3), plus the overheads.

    The groups are those that Vidur (MLSys'24, operator triaging) models separately: the layers'
    matrices, the output head, attention of prefills, attention of decodes. A step takes the sum of
    their times, because they run one after the other. A single maximum over the whole step would
    hide the reading of the decodes' caches behind the arithmetic of a prompt in the same step. In
    numbers, for T tokens and S sampled rows:

        matrices  max(2 P T / F, w P / B)                  P active parameters of w bytes head
        max(2 h V S / F, w h V / B) if S > 0     h hidden size, V vocabulary attention max(2 H (d +
        v) pairs / F, KV bytes read and written / B), each phase swaps     bytes copied to host
        memory and back / L

    F and B are the device's operations and bytes a second after its efficiencies, L the bytes a
    second of its link to host memory. H is the number of query heads; d and v are the lengths of a
    key and of a value. Activations and block copies are left out. For a mixture of experts only one
    token's experts count as read, so that batches come out too cheap; the named shapes are all
    dense.

    Args:
        charge_padding: also charge for the padding of a padded batch (`StepPlan.padding`).
    """

    def __init__(self, device: Device, shape: ModelShape, *, charge_padding: bool = False) -> None:
        self._shape = shape
        self._charge_padding = charge_padding
        flops, byte = 1 / device.flops, 1 / device.bandwidth
        head = shape.hidden_size * shape.vocab_size
        width = shape.head_dim + shape.value_dim
        self._token_seconds = 2 * shape.num_active_params * flops
        self._weights_seconds = shape.num_active_params * shape.dtype_bytes * byte
        self._sample_seconds = 2 * head * flops
        self._head_seconds = head * shape.dtype_bytes * byte
        self._pair_seconds = 2 * shape.num_heads * width * flops
        self._read_seconds = shape.num_kv_heads * width * shape.dtype_bytes * byte
        self._write_seconds = shape.kv_bytes_per_token * byte
        self._block_seconds = BLOCK_SIZE * shape.kv_bytes_per_token / device.link
        self._overhead = device.step_overhead + shape.num_layers * device.layer_overhead

    def seconds(self, plan: StepPlan) -> float:
        """See `CostModel.seconds`."""
        phases = by_phase(charged_rows(plan, self._charge_padding))
        num_swaps = len(plan.swaps_out) + len(plan.swaps_in)
        return self._seconds(map(self._shape.work, phases), num_swaps)

    def seconds_ahead(self, plan: StepPlan) -> Iterator[float]:
        """See `CostModel.seconds_ahead`."""
        rows = charged_rows(plan, self._charge_padding)
        return (self._seconds((work,)) for work in self._shape.works_ahead(rows))

    def _seconds(self, phases: Iterable[StepWork], num_swaps: int = 0) -> float:
        seconds = self._overhead + self._block_seconds * num_swaps
        tokens = samples = 0
        for work in phases:
            tokens += work.tokens
            samples += work.samples
            seconds += max(
                work.attended * self._pair_seconds,
                work.read * self._read_seconds + work.tokens * self._write_seconds,
            )
        if tokens:
            seconds += max(tokens * self._token_seconds, self._weights_seconds)
        if samples:
            seconds += max(samples * self._sample_seconds, self._head_seconds)
        return seconds


def charged_rows(plan: StepPlan, charge_padding: bool) -> tuple[Row, ...]:
    """The rows of a plan that cost time."""
    return plan.rows + plan.padding if charge_padding else plan.rows


def by_phase(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Split rows into decodes and prefills."""
    return [row for row in rows if not row.prefill], [row for row in rows if row.prefill]
