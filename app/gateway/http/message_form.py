"""MessageForm: a reply in the format of Anthropic's messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from app.gateway.faults import Fault
from app.gateway.http.anthropic_endpoint import anthropic_error
from app.gateway.http.generation import Form, event
from app.gateway.http.protocol.messages import MessagesRequest
from app.gateway.http.replies import Reply, quoted, went_well
from engine.api.client import Submission
from engine.api.lifecycle import FinishReason
from engine.api.stream import Delta, Finish, Usage
from engine.api.tools import ToolCall

_PING = event({"type": "ping"}, "ping")


class MessageForm(Form):
    """The events of a stream, or one answer: blocks of thinking, text and calls, in this order.

    Each block of a stream is begun, sent in pieces and ended before the next one begins.
    """

    def __init__(self, asked: MessagesRequest, model: str, submission: Submission) -> None:
        self._asked = asked
        self._id = submission.request_id
        self._model = model
        may_call = bool(submission.sampling.get("tools"))
        self._reply = Reply(may_call, asked.forced_calls(), asked.calls_one)
        self._open = ""  # the type of the open block
        self._index = -1

    def begin(self, num_prompt_tokens: int) -> Iterator[bytes]:
        message = self._message([], None, Usage(num_prompt_tokens, 0, 0))
        yield event({"type": "message_start", "message": message}, "message_start")
        yield _PING

    def waiting(self) -> bytes:
        return _PING

    def take(self, choice: int, delta: Delta) -> None:
        self._reply.take(delta)

    def tell(self, choice: int, delta: Delta) -> Iterator[bytes]:
        if delta.thinking and self._asked.tells_thinking:
            yield from self._tell("thinking", delta.thinking)
        if self._reply.news:
            yield from self._tell("text", self._reply.news)
        finish = delta.finish
        if finish is None or not went_well(finish):
            return
        yield from self._close()
        for number, call in enumerate(self._calls):
            yield from self._begin({**self._tool_use(call, number), "input": {}})
            yield self._piece("input_json_delta", "partial_json", call.arguments)
            yield from self._close()
        payload = {
            "type": "message_delta",
            "delta": self._stop(finish),
            "usage": _usage(finish.usage),
        }
        yield event(payload, "message_delta")

    def end(self) -> Iterator[bytes]:
        yield event({"type": "message_stop"}, "message_stop")

    def failed(self, fault: Fault) -> Iterator[bytes]:
        yield event(anthropic_error(fault), "error")

    def whole(self) -> dict[str, object]:
        finish = self._reply.finish
        assert finish is not None
        blocks: list[dict[str, object]] = []
        if self._reply.thinking and self._asked.tells_thinking:
            blocks.append({**_EMPTY["thinking"], "thinking": self._reply.thinking})
        if self._reply.text:
            blocks.append({**_EMPTY["text"], "text": self._reply.text})
        blocks += [self._tool_use(call, number) for number, call in enumerate(self._calls)]
        return self._message(blocks, finish, finish.usage)

    def _message(
        self, blocks: list[dict[str, object]], finish: Finish | None, usage: Usage
    ) -> dict[str, object]:
        stop = (
            {"stop_reason": None, "stop_sequence": None} if finish is None else self._stop(finish)
        )
        return {
            "id": f"msg_{self._id}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": blocks,
            **stop,
            "usage": _usage(usage),
        }

    @property
    def _calls(self) -> Sequence[ToolCall]:
        use = self._reply.use
        return () if use is None else use.calls

    def _tool_use(self, call: ToolCall, number: int) -> dict[str, object]:
        return {
            "type": "tool_use",
            "id": call.id or f"toolu_{self._id}_{number}",
            "name": call.name,
            "input": call.values(),
        }

    def _stop(self, finish: Finish) -> dict[str, object]:
        """The stop reason of a reply that succeeded."""
        reason = "end_turn"
        if finish.reason is FinishReason.LENGTH:
            fits = finish.usage.completion_tokens >= self._asked.max_tokens
            reason = "max_tokens" if fits else "model_context_window_exceeded"
        elif self._calls:
            reason = "tool_use"
        elif finish.stop is not None:
            reason = "stop_sequence"
        stop = finish.stop if reason == "stop_sequence" else None
        return {"stop_reason": reason, "stop_sequence": stop}

    def _tell(self, kind: str, text: str) -> Iterator[bytes]:
        """A piece of a block, after the block's begin if it is not open."""
        if self._open != kind:
            yield from self._close()
            yield from self._begin(_EMPTY[kind])
        yield self._piece(f"{kind}_delta", kind, text)

    def _begin(self, block: dict[str, object]) -> Iterator[bytes]:
        self._open = str(block["type"])
        self._index += 1
        payload = {"type": "content_block_start", "index": self._index, "content_block": block}
        yield event(payload, "content_block_start")

    def _piece(self, kind: str, field: str, text: str) -> bytes:
        delta = f'{{"type":"{kind}","{field}":{quoted(text)}}}'
        payload = f'{{"type":"content_block_delta","index":{self._index},"delta":{delta}}}'
        return f"event: content_block_delta\ndata: {payload}\n\n".encode()

    def _close(self) -> Iterator[bytes]:
        if self._open:
            self._open = ""
            payload = {"type": "content_block_stop", "index": self._index}
            yield event(payload, "content_block_stop")


# Blocks without their text. Thinking has no signature here.
_EMPTY: dict[str, dict[str, object]] = {
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
    "text": {"type": "text", "text": ""},
}


def _usage(usage: Usage) -> dict[str, object]:
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }
