"""Replies: the output of each reply to a request so far, and its end in OpenAI's form."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from app.gateway.http.protocol.tool_choice import ForcedCalls
from engine.api.lifecycle import FinishReason
from engine.api.logprobs import OutputToken, PromptToken
from engine.api.stream import Delta, Finish
from engine.api.tools import ToolCall, ToolUse

# Bytes of a large answer that are encoded and sent at a time: 3 ms of log-probabilities.
PART_BYTES = 1 << 15
# Plain entries of a list that are encoded at once.
_AT_ONCE = 1024
_PLAIN = (str, int, float, type(None))


@dataclass(slots=True)
class Reply:
    """One reply, with its output so far.

    If it may call tools, its text may contain calls in the model's own format. Text that certainly
    is no call is sent at once, and the rest at the end, when calls are parsed.

    Attributes:
        may_call: whether it may call tools.
        forced: calls that it has to make; its text is nothing else.
        calls_one: whether it may call at most one, so that further calls are dropped.
        echoed: text that is sent before the reply's own.
        num_tokens: output tokens so far.
        news: text to send now, after the last delta.
        is_sent: whether any of it was sent.
    """

    may_call: bool = False
    forced: ForcedCalls | None = None
    calls_one: bool = False
    echoed: str = ""
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    logprobs: list[OutputToken] = field(default_factory=list)
    prompt: list[PromptToken] = field(default_factory=list)
    num_tokens: int = 0
    finish: Finish | None = None
    news: str = ""
    is_sent: bool = False
    _held: list[str] = field(default_factory=list)
    _num_sent: int = 0
    _has_echoed: bool = False

    def add_delta(self, delta: Delta) -> None:
        self.texts.append(delta.text)
        self.thoughts.append(delta.thinking)
        self.logprobs += delta.logprobs
        self.prompt += delta.prompt
        self.num_tokens += delta.num_tokens
        self.finish = delta.finish
        self.news = self._news(delta) if self.may_call else delta.text
        if self.echoed and not self._has_echoed:
            self.news, self._has_echoed = self.echoed + self.news, True

    @property
    def use(self) -> ToolUse | None:
        """The reply's tool calls, once it has ended; None if there are none or it may not call."""
        if self.forced is not None:
            calls = self.forced.calls("".join(self.texts))
            return ToolUse(calls) if calls else None
        if not self.may_call or self.finish is None:
            return None
        use = self.finish.tool_use
        return replace(use, calls=use.calls[:1]) if use is not None and self.calls_one else use

    @property
    def text(self) -> str:
        """The reply's text, without its tool calls."""
        return self.echoed + self._said

    @property
    def thinking(self) -> str:
        return "".join(self.thoughts)

    @property
    def _said(self) -> str:
        use = self.use
        return "".join(self.texts) if use is None else use.content

    def _news(self, delta: Delta) -> str:
        if went_well(delta.finish):
            return self._said[self._num_sent :]
        self._held.append(delta.text)
        length = delta.num_certain - self._num_sent
        if length <= 0 or self.forced is not None:
            return ""
        held = "".join(self._held)
        news, self._held = held[:length], [held[length:]]
        self._num_sent += len(news)
        return news


def created() -> int:
    """The current time, in the form of OpenAI's answers."""
    return int(time.time())


def finish_reason(finish: Finish, use: ToolUse | None = None) -> str:
    """The finish reason of a reply that succeeded, with its tool calls."""
    if finish.reason is FinishReason.LENGTH:
        return "length"
    return "stop" if use is None else "tool_calls"


def went_well(finish: Finish | None) -> bool:
    """Whether a reply has ended successfully."""
    return finish is not None and finish.reason in (FinishReason.STOP, FinishReason.LENGTH)


def usage_of(prompts: Sequence[Sequence[Reply]]) -> dict[str, object]:
    """The token counts of a request, from the ended replies to each of its prompts."""
    used = [[one.finish.usage for one in replies if one.finish is not None] for replies in prompts]
    everything = [one for usages in used for one in usages]
    prompt = sum(usages[0].prompt_tokens for usages in used if usages)
    output = sum(one.completion_tokens for one in everything)
    cached = sum(usages[0].cached_tokens for usages in used if usages)
    thought = sum(one.reasoning_tokens for one in everything)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": thought},
    }


def called(call: ToolCall, request_id: str, number: int) -> dict[str, object]:
    """A call in OpenAI's form. One without an id gets one, which the tool's result refers to."""
    payload = call.in_openai_form()
    payload["id"] = call.id or f"call_{request_id}_{number}"
    return payload


def quoted(text: str) -> str:
    """A text as JSON."""
    return json.dumps(text, ensure_ascii=False)


def compact(data: object) -> str:
    """Plain data as JSON without blanks."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def pieces(data: object) -> Iterator[str]:
    """Plain data in the form of `compact`, piece by piece. An iterator within it is a list whose
    entries are made one after the other: 128 replies of 300 tokens with 20 alternatives are 60 MB,
    which blocked the loop for 5.8 s at once.
    """
    if isinstance(data, Mapping):
        begin = "{"
        for name, value in data.items():
            yield f"{begin}{quoted(name)}:"
            yield from pieces(value)
            begin = ","
        yield "}" if begin == "," else "{}"
    elif isinstance(data, (list, tuple)):
        begin = "["
        for at in range(0, len(data), _AT_ONCE):
            some = data[at : at + _AT_ONCE]
            if all(isinstance(entry, _PLAIN) for entry in some):
                yield f"{begin}{compact(some)[1:-1]}"
                begin = ","
                continue
            for entry in some:
                yield begin
                yield from pieces(entry)
                begin = ","
        yield "]" if begin == "," else "[]"
    elif isinstance(data, Iterator):
        begin = "["
        for entry in data:
            yield f"{begin}{compact(entry)}"
            begin = ","
        yield "]" if begin == "," else "[]"
    else:
        yield compact(data)


def parts(data: object) -> Iterator[bytes]:
    """The output of `pieces`, in parts of about `PART_BYTES`."""
    held: list[str] = []
    size = 0
    for piece in pieces(data):
        held.append(piece)
        size += len(piece)
        if size >= PART_BYTES:
            yield "".join(held).encode()
            held, size = [], 0
    if held:
        yield "".join(held).encode()
