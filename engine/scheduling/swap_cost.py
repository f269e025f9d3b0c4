"""SwapCost: the time to copy a victim's blocks, and to compute its tokens again."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence

from engine.api.telemetry import StepRecord
from engine.batch.plan import Request, Row
from engine.scheduling.steptime import StepTime, Work

# Bytes a second where no rate is known: 0.8 of PCIe 4 with 16 lanes (31.5 GB/s each way).
DEFAULT_RATE = 25e9
# Learning from a step takes 50 us. Steps that only decode are uninformative about both costs, so
# only one of this many is used.
_DECODES = 8
# Fewest tokens of a step that recomputes, so that a small budget does not make a long sum.
_LEAST_CHUNK = 64


class SwapCost:
    """Seconds that either way of preemption adds to steps, as measured.

    Both come from one model of step time (`engine.scheduling.steptime`), which learns from measured
    steps. Copied bytes are part of a step's work, so steps with swaps determine the rate.

    Attributes:
        block_bytes: bytes of one block in all layers.

    Args:
        rate: bytes a second at which blocks are copied, until a step measures it; 0 if unknown.
    """

    def __init__(self, block_bytes: int = 1, rate: float = 0.0) -> None:
        self.block_bytes = block_bytes
        self._model = StepTime(1 / (rate or DEFAULT_RATE))
        self._planned: deque[tuple[int, Work]] = deque()
        self._ended = 0.0

    def planned(self, step: int, rows: Iterable[Row], num_blocks: int) -> None:
        """Record the work of a planned step.

        Args:
            num_blocks: blocks that it copies to host memory or back.
        """
        rows = tuple(rows)
        work = Work.of_decodes([row.start for row in rows if not row.prefill])
        for row in rows:
            if row.prefill:
                work = work.prefill(row.start, row.count)
        self._planned.append((step, work._replace(moved=num_blocks * self.block_bytes)))

    def observe(self, record: StepRecord) -> None:
        """Learn from a step that has ended."""
        began, self._ended = max(record.start, self._ended), record.end
        while self._planned and self._planned[0][0] < record.step:
            self._planned.popleft()
        if not self._planned or self._planned[0][0] != record.step:
            return
        _step, work = self._planned.popleft()
        tells = record.prefill_rows or work.moved or record.step % _DECODES == 0
        if not record.error and (tells or not self._model.ready):
            # A step planned ahead began when the step before it ended.
            self._model.learn(work, record.end - began)

    def compare(
        self, victim: Request, num_blocks: int, running: Collection[Request], budget: int
    ) -> tuple[float, float] | None:
        """Seconds to copy a victim's computed tokens out and back, and to compute them again.

        Recomputation runs beside the decodes of the others, in steps of `budget` tokens. A prefix
        of the victim may be in the cache when it comes back, and is then neither copied nor
        computed, but that is unknown now.

        Args:
            num_blocks: blocks with the computed tokens.

        Returns:
            None until enough steps are measured.
        """
        model = self._model
        if not model.ready:
            return None
        beside = Work.of_decodes(_decodes(victim, running))
        base = model.seconds(beside)
        size = max(budget, _LEAST_CHUNK)
        tokens = victim.num_computed_tokens
        again = sum(
            model.seconds(beside.prefill(start, min(size, tokens - start))) - base
            for start in range(0, tokens, size)
        )
        round_trip = 2 * num_blocks * self.block_bytes
        return model.seconds(beside._replace(moved=round_trip)) - base, again


def _decodes(victim: Request, running: Collection[Request]) -> Sequence[int]:
    """Positions that the other requests decode next."""
    return [r.num_computed_tokens for r in running if r is not victim and not r.is_prefill]
