"""RequestStream: carries one request's text from the engine to its owner."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.api.errors import ErrorInfo
from engine.api.lifecycle import FinishReason, Timings
from engine.api.logprobs import OutputToken, PromptToken
from engine.api.tools import ToolUse


@dataclass(frozen=True, slots=True)
class Context:
    """A conversation so far: the exact token ids of its first `num_messages` messages.

    The next prompt extends these ids, so that it hits the prefix cache even if the template changes
    old text. The text is rendered again if they are ids of another model or of other template
    arguments (`model_key` identifies both), or if the last reply has thinking that the template
    does not repeat.

    Attributes:
        token_ids: packed from any sequence: a tuple of Python integers takes 36 bytes a token, and
            all chats that end at once hold theirs until the store has them.
    """

    model_key: str
    token_ids: Sequence[int]
    num_messages: int

    def __post_init__(self) -> None:
        if not isinstance(self.token_ids, array):
            object.__setattr__(self, "token_ids", array("I", self.token_ids))


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request.

    Attributes:
        reasoning_tokens: completion tokens of thinking, including its tags.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int = 0


class Thought(NamedTuple):
    """A reply's thinking so far.

    Attributes:
        tokens: see `Usage.reasoning_tokens`.
        seconds: see `Timings.thinking`.
    """

    tokens: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a request.

    Attributes:
        error: set when the reason is `error`.
        context: token ids of the whole conversation with this reply, for the next turn; None after
            an error.
        tool_use: the reply's tool calls; None if it has none, or if the model's format for them is
            unknown. The text has them in any case, as the model wrote them.
        stop: the stop string that ended the reply, if one did.
    """

    reason: FinishReason
    usage: Usage
    timings: Timings
    error: ErrorInfo | None = None
    context: Context | None = None
    tool_use: ToolUse | None = None
    stop: str | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """News of a request: text that follows the previous text, and the end if it has come.

    Attributes:
        text: the reply's text, without thinking and its tags.
        num_tokens: number of new output tokens. The one that completes a stop string is the last.
            The text of some may still be held back.
        logprobs: one for each token; empty unless requested (`SamplingParams.logprobs`).
        thinking: the model's thinking, which follows the previous thinking.
        num_certain: how many characters of all deltas' text so far certainly begin
            `ToolUse.content` if the reply calls tools. It is for requests with tools, and stays 0
            if the start of a call is unknown.
        prompt: further tokens of the prompt; empty unless requested
            (`SamplingParams.prompt_logprobs`). All come before the first output token.
    """

    text: str
    num_tokens: int
    finish: Finish | None = None
    logprobs: tuple[OutputToken, ...] = ()
    thinking: str = ""
    num_certain: int = 0
    prompt: tuple[PromptToken, ...] = ()


class RequestStream:
    """A queue of deltas with one writer and one reader, on any threads.

    Attributes:
        num_prompt_tokens: tokens of the prompt; 0 until it is encoded.
        num_output_tokens: output tokens of all drained deltas.
        thought: the thinking of all deltas put.
    """

    def __init__(self, request_id: str, wake: Callable[[], None] | None = None) -> None:
        self.request_id = request_id
        self.wake = wake
        self.num_prompt_tokens = 0
        self.num_output_tokens = 0
        self.thought = Thought()
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._num_new_tokens = 0
        self._num_certain = 0
        self._logprobs: list[OutputToken] = []
        self._prompt: list[PromptToken] = []
        self._finish: Finish | None = None
        self._lock = threading.Lock()
        self._ready = threading.Condition(self._lock)
        self._num_waiting = 0

    def put(self, delta: Delta) -> None:
        """Add news. The engine calls this, and then `wake`, once for all streams that share it."""
        with self._lock:
            self._logprobs += delta.logprobs
            self._prompt += delta.prompt
            self._finish = delta.finish
            self._add(delta.text, delta.num_tokens, delta.thinking, delta.num_certain)

    def add(self, text: str, num_tokens: int, thinking: str = "", num_certain: int = 0) -> None:
        """Add text, as `put` does. It runs for every token, and takes a third of the time."""
        with self._lock:
            self._add(text, num_tokens, thinking, num_certain)

    def _add(self, text: str, num_tokens: int, thinking: str, num_certain: int) -> None:
        self._texts.append(text)
        if thinking:
            self._thoughts.append(thinking)
        self._num_new_tokens += num_tokens
        self._num_certain = num_certain
        if self._num_waiting:
            self._ready.notify()

    def end_unserved(self, reason: FinishReason, error: ErrorInfo | None = None) -> None:
        """End a request that never reached the batch, and wake its owner."""
        self.put(Delta("", 0, Finish(reason, Usage(0, 0, 0), Timings(), error)))
        if self.wake is not None:
            self.wake()

    def drain(self) -> Delta | None:
        """Return everything since the last call as one delta, or None. Never blocks."""
        with self._lock:
            if not self._texts:
                return None
            texts, self._texts = self._texts, []
            thoughts, self._thoughts = self._thoughts, []
            num_tokens, self._num_new_tokens = self._num_new_tokens, 0
            logprobs, self._logprobs = self._logprobs, []
            prompt, self._prompt = self._prompt, []
            finish, self._finish = self._finish, None
            num_certain = self._num_certain
        self.num_output_tokens += num_tokens
        text, thinking = "".join(texts), "".join(thoughts)
        return Delta(
            text, num_tokens, finish, tuple(logprobs), thinking, num_certain, tuple(prompt)
        )

    def wait(self, timeout: float | None = None) -> bool:
        """Block until there is news; False if `timeout` seconds pass without any."""
        with self._ready:
            self._num_waiting += 1
            try:
                return self._ready.wait_for(lambda: bool(self._texts), timeout)
            finally:
                self._num_waiting -= 1

    def __iter__(self) -> Iterator[Delta]:
        """Yield deltas as they come, until the end. It blocks while there are none."""
        while True:
            self.wait()
            delta = self.drain()
            if delta is None:
                continue
            yield delta
            if delta.finish is not None:
                return
