"""ChatCompletions: /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence

from app.gateway.http.chat_form import ChatForm
from app.gateway.http.generation import Generation
from app.gateway.http.protocol.chat import ChatCompletionRequest
from app.gateway.sources import HTTP
from engine.api.client import ChatMessage, Submission, new_request_id
from engine.api.origin import Origin

_TITLE = 60


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
                begun=0 if asked.continue_final_message else None,
                repeats_begun=False,
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
