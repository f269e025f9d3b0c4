"""Messages: /v1/messages, in Anthropic's form."""

from __future__ import annotations

from collections.abc import Sequence

from app.gateway.http.anthropic_endpoint import AnthropicEndpoint
from app.gateway.http.chat_completions import title_of
from app.gateway.http.generation import Generation
from app.gateway.http.message_form import MessageForm
from app.gateway.http.protocol.messages import MessagesRequest
from app.gateway.sources import HTTP
from engine.api.client import Submission, new_request_id
from engine.api.origin import Origin


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
            begun=0 if messages[-1].role == "assistant" else None,
            repeats_begun=False,
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
