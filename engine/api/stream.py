"""RequestStream: the way of one request's text from the engine to its owner."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from engine.api.errors import ErrorInfo
from engine.api.lifecycle import FinishReason, Timings
from engine.api.logprobs import OutputToken


@dataclass(frozen=True, slots=True)
class Context:
    """A conversation so far: the exact token ids of its first `num_messages` messages.

    The next prompt extends them, so that it hits the prefix cache whatever the template does to old
    text. If they are ids of another model (`model_key`), they are set aside and the text is
    rendered anew.
    """

    model_key: str
    token_ids: tuple[int, ...]
    num_messages: int


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a request.

    Attributes:
        error: set when the reason is `error`.
        context: token ids of the whole conversation with this reply, for the next turn; None after
            an error.
    """

    reason: FinishReason
    usage: Usage
    timings: Timings
    error: ErrorInfo | None = None
    context: Context | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """News of a request: text that follows what came before, and the end if it came.

    Attributes:
        num_tokens: output tokens that came. The token that completes a stop string is the last. The
            text of some tokens may still be held back.
        logprobs: one for each of the tokens; empty unless the request asks for them
            (`SamplingParams.logprobs`).
    """

    text: str
    num_tokens: int
    finish: Finish | None = None
    logprobs: tuple[OutputToken, ...] = ()


class RequestStream:
    """A queue of deltas with one writer and one reader, on any threads.

    Attributes:
        num_prompt_tokens: tokens of the prompt, 0 until it is encoded.
        num_output_tokens: output tokens of all deltas that were drained.
    """

    def __init__(self, request_id: str, wake: Callable[[], None] | None = None) -> None:
        self.request_id = request_id
        self.wake = wake
        self.num_prompt_tokens = 0
        self.num_output_tokens = 0
        self._deltas: deque[Delta] = deque()
        self._ready = threading.Condition()

    def put(self, delta: Delta) -> None:
        """Add news; the engine calls this, and then `wake`, once for all streams that share it."""
        with self._ready:
            self._deltas.append(delta)
            self._ready.notify()

    def end_unserved(self, reason: FinishReason, error: ErrorInfo | None = None) -> None:
        """End a request that never reached the batch, and wake its owner."""
        self.put(Delta("", 0, Finish(reason, Usage(0, 0, 0), Timings(), error)))
        if self.wake is not None:
            self.wake()

    def drain(self) -> Delta | None:
        """All that has come since the last call as one delta, or None. Never blocks."""
        with self._ready:
            deltas = tuple(self._deltas)
            self._deltas.clear()
        if not deltas:
            return None
        num_tokens = sum(delta.num_tokens for delta in deltas)
        self.num_output_tokens += num_tokens
        if len(deltas) == 1:  # the usual case
            return deltas[0]
        return Delta(
            "".join(delta.text for delta in deltas),
            num_tokens,
            deltas[-1].finish,
            tuple(token for delta in deltas for token in delta.logprobs),
        )

    def wait(self, timeout: float | None = None) -> bool:
        """Block until there is news; False when `timeout` seconds passed without any."""
        with self._ready:
            return self._ready.wait_for(lambda: bool(self._deltas), timeout)

    def __iter__(self) -> Iterator[Delta]:
        """The deltas as they come, until the end. It blocks while there is none."""
        while True:
            self.wait()
            delta = self.drain()
            if delta is None:
                continue
            yield delta
            if delta.finish is not None:
                return
