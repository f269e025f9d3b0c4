"""Resumed: the earlier state of a reply that is being continued."""

from __future__ import annotations

from app.store.conversation import Message
from engine.api.lifecycle import Timings
from engine.api.stream import Context, Delta, Usage


class Resumed:
    """The earlier text of a reply stays until its stream repeats it.

    Args:
        context: the token ids of that earlier part; None if they are not stored.
    """

    def __init__(self, reply: Message, context: Context | None) -> None:
        self.context = context
        self._usage = reply.usage or Usage(0, 0, 0)
        self._timings = reply.timings or Timings()
        self._is_repeated = False

    def take(self, reply: Message, delta: Delta) -> None:
        """Clear the earlier text before the first delta, which repeats all of it."""
        if not self._is_repeated and (delta.text or delta.thinking):
            reply.thinking = reply.content = ""
            self._is_repeated = True

    def timings(self, usage: Usage, later: Timings) -> Timings:
        """The timings of the whole reply: it has one time to first token, and the times of its
        parts add up.

        Args:
            usage: of the whole reply.
            later: of the continuation.
        """
        first = self._timings
        if first.ttft is None:
            return later
        gaps = max(0, self._usage.completion_tokens - 1)
        later_gaps = max(0, usage.completion_tokens - self._usage.completion_tokens - 1)
        parts = [(first.tpot, gaps), (later.tpot, later_gaps)]
        known = [(tpot, count) for tpot, count in parts if tpot is not None and count]
        return Timings(
            queue=first.queue,
            prefill=first.prefill,
            decode=_sum(first.decode, later.decode),
            ttft=first.ttft,
            tpot=sum(t * n for t, n in known) / sum(n for _, n in known) if known else None,
            e2e=_sum(first.e2e, later.e2e),
            thinking=_sum(first.thinking, later.thinking),
        )


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None and other is None else (one or 0.0) + (other or 0.0)
