"""Lifecycle: a request's state, why it ended, and its times."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FinishReason(StrEnum):
    """Why a request ended. Every request ends once, with one of these."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class RequestState(StrEnum):
    """State of a request: waiting, running or finished; a preempted one waits again."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


@dataclass(slots=True)
class RequestTimings:
    """A request's times, in seconds on the engine's one monotonic clock.

    Queue, prefill and decode time are defined as in vLLM: from arrival until the request is first
    scheduled, from then to the first token, and from the first token to the last.
    """

    arrival: float
    first_scheduled: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    finished: float | None = None

    @property
    def queue(self) -> float | None:
        return None if self.first_scheduled is None else self.first_scheduled - self.arrival

    @property
    def prefill(self) -> float | None:
        if self.first_token is None or self.first_scheduled is None:
            return None
        return self.first_token - self.first_scheduled

    @property
    def decode(self) -> float | None:
        if self.first_token is None or self.last_token is None:
            return None
        return self.last_token - self.first_token

    @property
    def ttft(self) -> float | None:
        """Time to first token, from arrival."""
        return None if self.first_token is None else self.first_token - self.arrival

    @property
    def e2e(self) -> float | None:
        return None if self.finished is None else self.finished - self.arrival

    def tpot(self, num_output_tokens: int) -> float | None:
        """Time per output token after the first; None for fewer than two, which have no gap."""
        end = self.finished if self.finished is not None else self.last_token
        if self.first_token is None or end is None or num_output_tokens < 2:
            return None
        return (end - self.first_token) / (num_output_tokens - 1)


@dataclass(frozen=True, slots=True)
class Timings:
    """A finished request's times in seconds. None if it has no such time: one token has no TPOT.

    Attributes:
        thinking: from the first token to the last one of thinking; None without thinking.
    """

    queue: float | None = None
    prefill: float | None = None
    decode: float | None = None
    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None
    thinking: float | None = None

    @staticmethod
    def of(timings: RequestTimings, num_output_tokens: int) -> Timings:
        return Timings(
            timings.queue,
            timings.prefill,
            timings.decode,
            timings.ttft,
            timings.tpot(num_output_tokens),
            timings.e2e,
        )
