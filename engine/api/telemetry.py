"""Telemetry: a record for each step, samples for each request, and percentiles of samples."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

from engine.api.lifecycle import FinishReason, Timings
from engine.api.waiting import Wait

T = TypeVar("T")


class BlockChange(StrEnum):
    """An event of a block."""

    GIVEN = "given"
    SHARED = "shared"
    LEFT = "left"
    FREED = "freed"
    CACHED = "cached"
    EVICTED = "evicted"
    RESERVED = "reserved"
    FILLED = "filled"
    PINNED = "pinned"
    UNPINNED = "unpinned"


@dataclass(frozen=True, slots=True)
class BlockEvents:
    """The block events of a step, in order: enough to rebuild any past moment.

    Attributes:
        log: (change, block, sequence). The sequence is the holder added or removed, -1 if none.
            GIVEN, RESERVED (not to be filled yet) and SHARED add a holder. LEFT removes one of
            several holders; FREED, CACHED and PINNED (never evicted) remove the last one. EVICTED
            unpublishes a cached block, so that it can be reallocated, and FILLED puts a reserved
            block to use. PINNED and UNPINNED without a sequence turn a cached block into a pinned
            one and back.
    """

    log: tuple[tuple[BlockChange, int, int], ...] = ()

    def blocks(self, change: BlockChange) -> tuple[int, ...]:
        return tuple(block for what, block, _seq in self.log if what is change)


@dataclass(frozen=True, slots=True)
class PhaseTimes:
    """Seconds that a step spent in the runner: building inputs, in the forward pass, sampling.

    Attributes:
        mask: time spent waiting for the structures' masks before sampling. It is not part of the
            others.
    """

    prepare: float = 0.0
    forward: float = 0.0
    sample: float = 0.0
    mask: float = 0.0


@dataclass(frozen=True, slots=True)
class StepCost:
    """The work of one step: floating-point operations, and bytes moved to and from memory."""

    flops: int
    bytes: int


class Ended(NamedTuple):
    """A request that ended: its number of output tokens, and why it ended.

    Attributes:
        cached_tokens: prompt tokens found in the prefix cache.
    """

    request_id: str
    output_tokens: int
    reason: FinishReason
    prompt_tokens: int = 0
    cached_tokens: int = 0
    timings: Timings = Timings()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step of the batch. Times in seconds on the engine's clock.

    Attributes:
        start, turn_start, end: when its planning began; when its turn came, which is later if the
            previous step was still running; and when it was done.
        plan, commit: the scheduling before the step and the bookkeeping after it; `times` has the
            runner's phases.
        prefill_tokens, decode_tokens: tokens computed; their sum is the step's size.
        prefill_rows, decode_rows: the number of sequences they belong to.
        structured_rows: rows that sampled a token of a structured reply.
        padding_tokens: prompt tokens that a padded batch would also compute, in vain.
        bubble_tokens: tokens that such a batch would compute for members that have ended.
        budget: tokens that the policy allowed.
        model: the name of the loaded model.
        cost: least FLOPs and bytes of the step, computed from the model's shape.
        output_tokens: tokens appended to requests.
        running, waiting: how many requests ran and waited after planning.
        head_wait: why the first of the waiting ones waited.
        finished: requests that ended since the last record.
        preempted_for: for each of `preempted` the request that needed its blocks; empty if there
            was none, as when a request preempted itself.
        swapped: those of `preempted` whose blocks were copied to host memory; the others are
            recomputed.
        restored: those of `admitted` whose blocks were copied back.
        swapped_out_blocks, swapped_in_blocks: blocks that the step copied to host memory and back.
        prefix_queried_tokens, prefix_hit_tokens: prompt tokens of newly admitted requests, and how
            many of them were cached.
        blocks: the pool's events since the last record.
        free_blocks, cached_blocks, used_blocks: the pool afterwards, with `blocks` applied.
        given_slots, unused_slots: token slots of the used blocks during the step, and how many held
            no token that was still needed.
        error: what the step raised, in which case nothing counts as computed; else empty.
    """

    step: int
    start: float
    turn_start: float
    end: float
    plan: float
    commit: float
    times: PhaseTimes
    prefill_tokens: int
    decode_tokens: int
    prefill_rows: int
    decode_rows: int
    padding_tokens: int
    bubble_tokens: int
    output_tokens: int
    budget: int
    policy: str
    cost: StepCost
    running: int
    waiting: int
    preempted: tuple[str, ...]
    admitted: tuple[str, ...]
    finished: tuple[Ended, ...]
    prefix_queried_tokens: int
    prefix_hit_tokens: int
    blocks: BlockEvents
    free_blocks: int
    cached_blocks: int
    used_blocks: int
    given_slots: int
    unused_slots: int
    model: str = ""
    head_wait: Wait | None = None
    preempted_for: tuple[str, ...] = ()
    swapped: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()
    swapped_out_blocks: int = 0
    swapped_in_blocks: int = 0
    structured_rows: int = 0
    error: str = ""

    @property
    def duration(self) -> float:
        """Seconds of its turn; turns of different steps do not overlap."""
        return self.end - self.turn_start

    @property
    def num_tokens(self) -> int:
        return self.prefill_tokens + self.decode_tokens

    @property
    def kv_waste(self) -> float:
        """The share of the allocated token slots that is unused."""
        return self.unused_slots / self.given_slots if self.given_slots else 0.0


class Ring(Generic[T]):
    """The last `capacity` items, numbered from 0; one thread appends, any thread reads.

    Readers need no lock. An append is one list store and one integer store, each of them atomic
    under the interpreter. A reader that is overtaken sees newer items, never torn ones.
    """

    def __init__(self, capacity: int) -> None:
        self._items: list[T | None] = [None] * capacity
        self.total = 0

    def append(self, item: T) -> None:
        self._items[self.total % len(self._items)] = item
        self.total += 1

    def since(self, index: int) -> tuple[T, ...]:
        """The available items from number `index` on."""
        total, capacity = self.total, len(self._items)
        first = max(index, total - capacity, 0)
        items = (self._items[i % capacity] for i in range(first, total))
        return tuple(item for item in items if item is not None)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Percentiles of samples, in the samples' unit; NaN without samples."""

    count: int
    mean: float
    p50: float
    p99: float

    @staticmethod
    def of(samples: Iterable[float]) -> Distribution:
        ordered = sorted(samples)
        if not ordered:
            return Distribution(0, math.nan, math.nan, math.nan)
        mean = sum(ordered) / len(ordered)
        return Distribution(len(ordered), mean, percentile(ordered, 0.5), percentile(ordered, 0.99))


def percentile(ordered: Sequence[float], q: float) -> float:
    """The q-quantile of sorted samples, linearly interpolated as numpy does; NaN if none."""
    if not ordered:
        return math.nan
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


class Recent:
    """The last `capacity` numbers, and at most as many again before the oldest are dropped.

    They are contiguous in memory, so that a copy is quick. The garbage collector does not visit
    them: numbers as objects, 30,000 of them, cost it 5 ms.

    Attributes:
        numbers: oldest first.
        gone: how many were dropped before them.
    """

    __slots__ = ("capacity", "gone", "numbers")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.numbers = array("d")
        self.gone = 0

    def append(self, number: float) -> None:
        self.numbers.append(number)
        if len(self.numbers) >= 2 * self.capacity:
            self._drop()

    def extend(self, numbers: Iterable[float]) -> None:
        self.numbers.extend(numbers)
        if len(self.numbers) >= 2 * self.capacity:
            self._drop()

    def _drop(self) -> None:
        self.gone += len(self.numbers) - self.capacity
        del self.numbers[: -self.capacity]

    def last(self) -> array[float]:
        """A copy of the last `capacity` numbers."""
        return self.numbers[-self.capacity :]


class Samples:
    """Timed samples of one quantity: at most `capacity`, read over a window of seconds.

    A read sorts them, which takes 2 ms for 8,192 samples. One thread adds, and only it may copy;
    any thread may read a copy.
    """

    def __init__(self, capacity: int = 8192) -> None:
        self._times, self._values = Recent(capacity), Recent(capacity)

    def __copy__(self) -> Samples:
        """Copy the samples; 0.02 ms for 8,192."""
        copied = Samples(self._times.capacity)
        copied._times.numbers = self._times.last()
        copied._values.numbers = self._values.last()
        copied._values.gone = self.total - len(copied._values.numbers)
        return copied

    @property
    def total(self) -> int:
        """How many samples were ever added, including dropped ones."""
        return self._values.gone + len(self._values.numbers)

    def add(self, time: float, value: float) -> None:
        self._times.append(time)
        self._values.append(value)

    def extend(self, times: Sequence[float], values: Sequence[float]) -> None:
        """Add samples in the order of their times."""
        self._times.extend(times)
        self._values.extend(values)

    def over(self, since: float, unfinished: Iterable[float] = ()) -> Distribution:
        """Distribution of the samples taken at `since` or later, together with `unfinished`.

        Args:
            unfinished: values so far of measurements in progress.
        """
        first = bisect_left(self._times.last(), since)
        return Distribution.of([*unfinished, *self._values.last()[first:]])

    def since(self, number: int) -> array[float]:
        """The available values from number `number` on, counted from 0."""
        values = self._values.last()
        return values[max(number - (self.total - len(values)), 0) :]

    def between(self, since: float, until: float) -> tuple[array[float], array[float]]:
        """The times and values of the samples from `since` to `until`, oldest first."""
        times, values = self._times.last(), self._values.last()
        first, last = bisect_left(times, since), bisect_right(times, until)
        return times[first:last], values[first:last]
