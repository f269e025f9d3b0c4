"""Responses: /v1/responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from app.gateway.faults import Fault
from app.gateway.http.chat_completions import title_of
from app.gateway.http.generation import Generation
from app.gateway.http.protocol.responses import ResponsesRequest
from app.gateway.http.response_form import ResponseForm
from app.gateway.http.response_memory import ResponseMemory
from app.gateway.http.service import Service
from app.gateway.sources import HTTP
from engine.api.client import ChatMessage, Submission, new_request_id
from engine.api.origin import Origin


class Responses(Generation[ResponsesRequest]):
    """The response to a conversation, or to the continuation of a remembered one."""

    kind = ResponsesRequest
    params: ClassVar[Mapping[str, str]] = {"messages": "input"}

    def __init__(self, service: Service, memory: ResponseMemory) -> None:
        super().__init__(service)
        self._memory = memory

    def submissions(self, user: str, asked: ResponsesRequest) -> Sequence[Submission]:
        messages, context = asked.messages(), None
        if (name := asked.previous_response_id) is not None:
            before = self._memory.get(user, name)
            if before is None:
                text = f"previous_response_id is {name!r}; it must be the id of one of your last"
                text += " responses that were stored"
                reason = "previous response not found"
                raise Fault(404, text, "previous_response_id", reason=reason)
            messages = [*before.messages, *messages]
            if before.instructions == (asked.instructions or ""):
                context = before.context
        if asked.instructions:
            messages.insert(0, ChatMessage("system", asked.instructions))
        request_id = new_request_id()
        origin = Origin(
            user=user,
            conversation=f"{HTTP}/{request_id}",
            source=HTTP,
            title=title_of(messages),
        )
        one = Submission(
            messages=tuple(messages),
            context=context,
            sampling={**self.service.sampling, **asked.sampling()},
            request_id=request_id,
            origin=origin,
            priority=self.service.quotas.priority(user, 0),
            cache_salt=self.service.salt(user, asked.cache_salt),
        )
        return (one,)

    def form(
        self, asked: ResponsesRequest, model: str, submissions: Sequence[Submission]
    ) -> ResponseForm:
        return ResponseForm(asked, model, submissions[0], self._memory)

    def streams(self, asked: ResponsesRequest) -> bool:
        return bool(asked.stream)

    def asked_model(self, asked: ResponsesRequest) -> str | None:
        return asked.model
