"""Messages and MessageCount: /v1/messages and its count of tokens, in Anthropic's form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Send

from app.gateway.faults import Fault
from app.gateway.http.chat_completions import title_of
from app.gateway.http.endpoint import Endpoint
from app.gateway.http.generation import Form, Generation, event
from app.gateway.http.protocol.messages import MessageCountRequest, MessagesRequest
from app.gateway.http.replies import Reply, quoted, went_well
from app.gateway.sources import HTTP
from engine.api.client import Submission, new_request_id
from engine.api.lifecycle import FinishReason
from engine.api.origin import Origin
from engine.api.stream import Delta, Finish, Usage
from engine.api.tools import ToolCall

_PING = event({"type": "ping"}, "ping")
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


class AnthropicEndpoint(Endpoint):
    """Distinguishes a caller over its own limits (429) from an overloaded server (529)."""

    def error(self, fault: Fault) -> dict[str, object]:
        return anthropic_error(fault)

    def status(self, fault: Fault) -> int:
        return 529 if _is_overload(fault) else super().status(fault)


def anthropic_error(fault: Fault) -> dict[str, object]:
    """An error in the shape that Anthropic's clients know. Its message names the fault in a
    request.
    """
    kind = _TYPES.get(529 if _is_overload(fault) else fault.code, "api_error")
    return {"type": "error", "error": {"type": kind, "message": fault.message}}


def _is_overload(fault: Fault) -> bool:
    return fault.code == 429 and not fault.reason.startswith("user ")


class MessageForm(Form):
    """The events of a stream, or one answer: blocks of thinking, text and calls, in this order.

    Each block of a stream is started, sent in pieces and ended before the next one begins.
    """

    def __init__(self, asked: MessagesRequest, model: str, submission: Submission) -> None:
        self._asked = asked
        self._id = submission.request_id
        self._model = model
        may_call = bool(submission.sampling.get("tools"))
        self._reply = Reply(may_call, asked.forced_calls(), asked.calls_one)
        self._open = ""  # the type of the open block
        self._index = -1

    def opening_events(self, num_prompt_tokens: int) -> Iterator[bytes]:
        message = self._message([], None, Usage(num_prompt_tokens, 0, 0))
        yield event({"type": "message_start", "message": message}, "message_start")
        yield _PING

    def waiting(self) -> bytes:
        return _PING

    def add_delta(self, choice: int, delta: Delta) -> None:
        self._reply.add_delta(delta)

    def delta_events(self, choice: int, delta: Delta) -> Iterator[bytes]:
        if delta.thinking and self._asked.includes_thinking:
            yield from self._block_events("thinking", delta.thinking)
        if self._reply.news:
            yield from self._block_events("text", self._reply.news)
        finish = delta.finish
        if finish is None or not went_well(finish):
            return
        yield from self._close()
        for number, call in enumerate(self._calls):
            yield from self._start_block({**self._tool_use(call, number), "input": {}})
            yield self._piece("input_json_delta", "partial_json", call.arguments)
            yield from self._close()
        payload = {
            "type": "message_delta",
            "delta": self._stop(finish),
            "usage": _usage(finish.usage),
        }
        yield event(payload, "message_delta")

    def closing_events(self) -> Iterator[bytes]:
        yield event({"type": "message_stop"}, "message_stop")

    def failed(self, fault: Fault) -> Iterator[bytes]:
        yield event(anthropic_error(fault), "error")

    def whole(self) -> dict[str, object]:
        finish = self._reply.finish
        assert finish is not None
        blocks: list[dict[str, object]] = []
        if self._reply.thinking and self._asked.includes_thinking:
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

    def _block_events(self, kind: str, text: str) -> Iterator[bytes]:
        """A piece of a block, after the block's begin if it is not open."""
        if self._open != kind:
            yield from self._close()
            yield from self._start_block(_EMPTY[kind])
        yield self._piece(f"{kind}_delta", kind, text)

    def _start_block(self, block: dict[str, object]) -> Iterator[bytes]:
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


class Messages(AnthropicEndpoint, Generation[MessagesRequest]):
    """The next message of a chat."""

    kind = MessagesRequest

    def submissions(self, user: str, asked: MessagesRequest) -> Sequence[Submission]:
        messages, name = asked.chat(), new_request_id()
        origin = Origin(
            user=user, conversation=f"{HTTP}/{name}", source=HTTP, title=title_of(messages)
        )
        one = Submission(
            messages=messages,
            sampling={**self.service.sampling, **asked.sampling()},
            request_id=name,
            origin=origin,
            num_partial=0 if messages[-1].role == "assistant" else None,
            repeats_partial=False,
            priority=self.service.quotas.priority(user, 0),
            cache_salt=self.service.salt(user, asked.cache_salt),
            trims_max_tokens=True,
        )
        return (one,)

    def form(
        self, asked: MessagesRequest, model: str, submissions: Sequence[Submission]
    ) -> MessageForm:
        return MessageForm(asked, model, submissions[0])

    def streams(self, asked: MessagesRequest) -> bool:
        return bool(asked.stream)

    def asked_model(self, asked: MessagesRequest) -> str | None:
        return asked.model


class MessageCount(AnthropicEndpoint):
    """The number of tokens in the prompt of a chat."""

    kind = MessageCountRequest

    async def answer(self, request: Request, send: Send) -> Response:
        service = self.service
        user, asked = await service.read_request(request, MessageCountRequest)
        service.model(asked.model)
        chat, sampling = asked.chat(), {**service.sampling, **asked.sampling()}
        with service.counted(user):
            tokens = await service.promised(
                request, service.client.tokenize(chat, sampling, user=user)
            )
        return JSONResponse({"input_tokens": len(tokens)}, headers=asked.ignored_header)
