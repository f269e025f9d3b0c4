"""Completions: /v1/completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from app.gateway.http.chat_completions import title
from app.gateway.http.completion_form import CompletionForm
from app.gateway.http.generation import Generation
from app.gateway.http.protocol.completions import CompletionRequest
from app.gateway.sources import HTTP
from engine.api.client import Submission, new_request_id
from engine.api.origin import Origin


class Completions(Generation[CompletionRequest]):
    """Text that continues one or several prompts."""

    kind = CompletionRequest
    params: ClassVar[Mapping[str, str]] = {"messages": "prompt"}

    def submissions(self, user: str, asked: CompletionRequest) -> Sequence[Submission]:
        sampling = {**self.service.sampling, **asked.sampling()}
        priority = self.service.quotas.priority(user, -(asked.priority or 0))
        salt = self.service.salt(user, asked.cache_salt)
        first = new_request_id()
        made: list[Submission] = []
        for number, prompt in enumerate(asked.prompts()):
            named = title(prompt) if isinstance(prompt, str) else f"{len(prompt)} token ids"
            origin = Origin(user=user, conversation=f"{HTTP}/{first}", source=HTTP, title=named)
            begun = f"{first}-{number * asked.choices}" if number else first
            made += [
                Submission(
                    prompt=prompt,
                    sampling=asked.of_choice(sampling, choice),
                    request_id=f"{first}-{len(made) + choice}" if made or choice else first,
                    origin=origin,
                    priority=priority,
                    fork_of=begun if choice else None,
                    cache_salt=salt,
                )
                for choice in range(asked.choices)
            ]
        return made

    def form(
        self, asked: CompletionRequest, model: str, submissions: Sequence[Submission]
    ) -> CompletionForm:
        return CompletionForm(asked, model, submissions)

    def streams(self, asked: CompletionRequest) -> bool:
        return bool(asked.stream)

    def asked_model(self, asked: CompletionRequest) -> str | None:
        return asked.model
