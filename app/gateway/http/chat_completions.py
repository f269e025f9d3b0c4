"""ChatCompletions: /v1/chat/completions, and the format of its replies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from app.gateway.http.generation import Generation
from app.gateway.http.openai_form import OpenAiForm
from app.gateway.http.protocol.chat import ChatCompletionRequest
from app.gateway.http.replies import (
    Reply,
    called,
    compact,
    finish_reason,
    quoted,
    went_well,
)
from app.gateway.logprobs import prompt_logprobs, token_bytes
from app.gateway.sources import HTTP
from engine.api.client import ChatMessage, Submission, new_request_id
from engine.api.logprobs import OutputToken
from engine.api.origin import Origin
from engine.api.stream import Delta

_TITLE = 60


class ChatForm(OpenAiForm):
    """As `OpenAiForm`, for chats."""

    prefix = "chatcmpl"
    kind = "chat.completion"
    kind_of_chunk = "chat.completion.chunk"

    def __init__(
        self, asked: ChatCompletionRequest, model: str, submissions: Sequence[Submission]
    ) -> None:
        super().__init__(asked, model, submissions)
        self._asked = asked
        forced, calls_one, echoed = asked.forced_calls(), asked.calls_one, ""
        if asked.echo and asked.continue_final_message:
            echoed = submissions[0].messages[-1].content
        self._replies = [
            Reply(bool(one.sampling.get("tools")), forced, calls_one, echoed) for one in submissions
        ]

    def delta_events(self, choice: int, delta: Delta) -> Iterator[bytes]:
        reply = self._replies[choice]
        thinking = delta.thinking if self._asked.include_reasoning else ""
        if reply.news or thinking or delta.logprobs:
            part = self._part(reply, reply.news, thinking)
            yield from self._part_chunk(choice, part, delta.logprobs)
        finish = delta.finish
        if finish is None or not went_well(finish):
            return
        use = reply.use
        if use is not None:
            calls = [
                {"index": number, **called(call, self._call_id(choice), number)}
                for number, call in enumerate(use.calls)
            ]
            role = "" if reply.is_sent else '"role":"assistant",'
            reply.is_sent = True
            yield from self._part_chunk(choice, f'{role}"tool_calls":{compact(calls)}')
        part = "" if reply.is_sent else '"role":"assistant","content":""'
        yield from self._part_chunk(choice, part, reason=finish_reason(finish, use))

    def whole(self) -> dict[str, object]:
        number = self._asked.prompt_logprobs
        if number is None:
            return super().whole()
        return super().whole() | {
            "prompt_logprobs": prompt_logprobs(self._replies[0].prompt, number)
        }

    def _choice(self, choice: int, reply: Reply) -> dict[str, object]:
        finish = reply.finish
        assert finish is not None
        message: dict[str, object] = {"role": "assistant", "content": reply.text, "refusal": None}
        if reply.thinking and self._asked.include_reasoning:
            message["reasoning_content"] = reply.thinking
        if (use := reply.use) is not None:
            message["content"] = reply.text or None
            message["tool_calls"] = [
                called(call, self._call_id(choice), number) for number, call in enumerate(use.calls)
            ]
        logprobs = None
        if self._asked.logprobs:
            logprobs = {"content": map(token_bytes, reply.logprobs), "refusal": None}
        return {
            "index": choice,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": finish_reason(finish, use),
        }

    def _call_id(self, choice: int) -> str:
        return f"{self._id}_{choice}" if choice else self._id

    def _part(self, reply: Reply, text: str, thinking: str) -> str:
        """The members of a delta, as JSON without braces."""
        parts = [] if reply.is_sent else ['"role":"assistant"']
        if thinking:
            parts.append(f'"reasoning_content":{quoted(thinking)}')
        if text or not thinking:
            parts.append(f'"content":{quoted(text)}')
        reply.is_sent = True
        return ",".join(parts)

    def _part_chunk(
        self,
        choice: int,
        part: str,
        logprobs: Sequence[OutputToken] = (),
        reason: str | None = None,
    ) -> Iterator[bytes]:
        why = "null" if reason is None else f'"{reason}"'
        before = f'{{"index":{choice},"delta":{{{part}}},"logprobs":'
        after = f',"finish_reason":{why}}}'
        if logprobs:
            payload = {"content": map(token_bytes, logprobs)}
            yield from self._chunk_with(before, payload, after)
        else:
            yield self._chunk(f"{before}null{after}")


class ChatCompletions(Generation[ChatCompletionRequest]):
    """The next message of a chat, in `n` versions."""

    kind = ChatCompletionRequest

    def submissions(self, user: str, asked: ChatCompletionRequest) -> Sequence[Submission]:
        messages = asked.chat()
        sampling = {**self.service.sampling, **asked.sampling()}
        first = new_request_id()
        origin = Origin(
            user=user, conversation=f"{HTTP}/{first}", source=HTTP, title=title_of(messages)
        )
        return [
            Submission(
                messages=messages,
                sampling=asked.of_choice(sampling, choice),
                request_id=f"{first}-{choice}" if choice else first,
                origin=origin,
                num_partial=0 if asked.continue_final_message else None,
                repeats_partial=False,
                priority=self.service.quotas.priority(user, -(asked.priority or 0)),
                fork_of=first if choice else None,
                cache_salt=self.service.salt(user, asked.cache_salt),
            )
            for choice in range(asked.choices)
        ]

    def form(
        self, asked: ChatCompletionRequest, model: str, submissions: Sequence[Submission]
    ) -> ChatForm:
        return ChatForm(asked, model, submissions)

    def streams(self, asked: ChatCompletionRequest) -> bool:
        return bool(asked.stream)

    def asked_model(self, asked: ChatCompletionRequest) -> str | None:
        return asked.model


def title_of(messages: Sequence[ChatMessage]) -> str:
    """The chat's title on the screen: the beginning of its last question."""
    asked = next((one.content for one in reversed(messages) if one.role == "user"), "")
    return title(asked)


def title(text: str) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(text[: 4 * _TITLE].split())
    return line if len(line) <= _TITLE else f"{line[: _TITLE - 1]}…"
