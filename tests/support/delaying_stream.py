"""DelayingStream: a device that does nothing before somebody waits for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class DelayingStream:
    """An `engine.model.gpu.stream.Stream` that does its work as late as it may.

    Memory of the host that was used again too early, or read too early, shows, because copies are
    made only when a mark is waited for. What was handed out as pinned memory is spoiled once the
    work that may use it has been waited for.

    Attributes:
        lag: most pieces of work that are left undone.
    """

    lag: int = 1_000_000
    _waiting: deque[Callable[[], object]] = field(default_factory=deque)
    _num_enqueued: int = 0
    _num_done: int = 0

    def pinned(self, num_words: int) -> Tensor:
        return torch.full((num_words,), -(2**31), dtype=torch.int32)

    def enqueue(self, work: Callable[[], object]) -> DelayedMark:
        self._waiting.append(work)
        self._num_enqueued += 1
        self.do(self._num_enqueued - self.lag)
        return DelayedMark(self, self._num_enqueued)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        return work

    def do(self, number: int) -> None:
        """Do the pieces up to this one, counted from 1."""
        while self._num_done < number:
            self._num_done += 1
            with torch.inference_mode():
                self._waiting.popleft()()


@dataclass(frozen=True)
class DelayedMark:
    stream: DelayingStream
    number: int

    def wait(self) -> float:
        self.stream.do(self.number)
        return 0.001

    def since(self, other: DelayedMark) -> float:
        assert other.number < self.number
        return 0.0005
