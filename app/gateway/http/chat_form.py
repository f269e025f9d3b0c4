"""ChatForm: replies told as OpenAI's chat completions are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from app.gateway.faults import Fault
from app.gateway.http.endpoint import error_body
from app.gateway.http.generation import Form, event
from app.gateway.http.protocol.chat import ChatCompletionRequest
from app.gateway.http.replies import (
    Reply,
    called,
    compact,
    created,
    finish_reason,
    quoted,
    token_bytes,
    usage_of,
    went_well,
)
from engine.api.client import Submission
from engine.api.logprobs import OutputToken
from engine.api.stream import Delta
from engine.api.tools import ToolUse

DONE = b"data: [DONE]\n\n"


class ChatForm(Form):
    """The chunks of a stream, or one answer.

    A chunk's text is put between two pieces that are made once: at 64 streams of 20 tokens/s that
    is 1,280 chunks a second.
    """

    def __init__(
        self, asked: ChatCompletionRequest, model: str, submissions: Sequence[Submission]
    ) -> None:
        self._id = submissions[0].request_id
        self._model = model
        self._created = created()
        self._asked = asked
        # The text of calls is in the model's own format; a client is told them at the end.
        self._holds_text = bool(submissions[0].sampling.get("tools"))
        self._forced = asked.forced_calls()
        self._replies = [Reply() for _ in submissions]
        head = {
            "id": f"chatcmpl-{self._id}",
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": model,
        }
        self._head = b"data: " + compact(head).encode()[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if asked.includes_usage else b"]}\n\n"

    def take(self, choice: int, delta: Delta) -> None:
        self._replies[choice].take(delta)

    def tell(self, choice: int, delta: Delta) -> Iterator[bytes]:
        reply = self._replies[choice]
        thinking = delta.thinking if self._asked.include_reasoning else ""
        text = "" if self._holds_text else delta.text
        if text or thinking or delta.logprobs:
            yield self._chunk(choice, self._part(reply, text, thinking), delta.logprobs)
        finish = delta.finish
        if finish is None or not went_well(finish):
            return
        use = self._use(reply)
        content = reply.text if use is None else use.content
        if self._holds_text and content:
            yield self._chunk(choice, self._part(reply, content, ""))
        if use is not None:
            calls = [
                {"index": number, **called(call, self._call_id(choice), number)}
                for number, call in enumerate(use.calls)
            ]
            role = "" if reply.is_told else '"role":"assistant",'
            reply.is_told = True
            yield self._chunk(choice, f'{role}"tool_calls":{compact(calls)}')
        part = "" if reply.is_told else '"role":"assistant","content":""'
        yield self._chunk(choice, part, reason=finish_reason(finish, use))

    def end(self) -> Iterator[bytes]:
        if self._asked.includes_usage:
            usage = compact(usage_of(self._replies)).encode()
            yield self._head + b'],"usage":' + usage + b"}\n\n"
        yield DONE

    def failed(self, fault: Fault) -> Iterator[bytes]:
        yield event(error_body(fault))
        yield DONE

    def whole(self) -> dict[str, object]:
        return {
            "id": f"chatcmpl-{self._id}",
            "object": "chat.completion",
            "created": self._created,
            "model": self._model,
            "choices": [self._choice(at, reply) for at, reply in enumerate(self._replies)],
            "usage": usage_of(self._replies),
        }

    def _choice(self, choice: int, reply: Reply) -> dict[str, object]:
        finish = reply.finish
        assert finish is not None
        message: dict[str, object] = {"role": "assistant", "content": reply.text, "refusal": None}
        if reply.thinking and self._asked.include_reasoning:
            message["reasoning_content"] = reply.thinking
        if (use := self._use(reply)) is not None:
            message["content"] = use.content or None
            message["tool_calls"] = [
                called(call, self._call_id(choice), number) for number, call in enumerate(use.calls)
            ]
        logprobs = None
        if self._asked.logprobs:
            logprobs = {"content": [token_bytes(one) for one in reply.logprobs], "refusal": None}
        return {
            "index": choice,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": finish_reason(finish, use),
        }

    def _use(self, reply: Reply) -> ToolUse | None:
        """The tools that a reply calls that has ended."""
        assert reply.finish is not None
        if self._forced is not None:
            calls = self._forced.calls("".join(reply.texts))
            return ToolUse(calls) if calls else None
        return reply.finish.tool_use

    def _call_id(self, choice: int) -> str:
        return f"{self._id}_{choice}" if choice else self._id

    def _part(self, reply: Reply, text: str, thinking: str) -> str:
        """The inside of a delta."""
        parts = [] if reply.is_told else ['"role":"assistant"']
        if thinking:
            parts.append(f'"reasoning_content":{quoted(thinking)}')
        if text or not thinking:
            parts.append(f'"content":{quoted(text)}')
        reply.is_told = True
        return ",".join(parts)

    def _chunk(
        self,
        choice: int,
        part: str,
        logprobs: Sequence[OutputToken] = (),
        reason: str | None = None,
    ) -> bytes:
        told = "null"
        if logprobs:
            told = compact({"content": [token_bytes(one) for one in logprobs]})
        why = "null" if reason is None else f'"{reason}"'
        body = f'{{"index":{choice},"delta":{{{part}}},"logprobs":{told},"finish_reason":{why}}}'
        return self._head + body.encode() + self._tail
