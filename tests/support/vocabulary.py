"""Vocabulary: words as token ids, for chats whose replies are given."""

from __future__ import annotations

import re
from collections.abc import Sequence

from engine.api.client import ChatMessage, Submission


class Vocabulary:
    """Words as token ids. A token is a word with the blanks before it."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._texts: list[str] = []

    def id(self, word: str, text: str = "") -> int:
        """The id of a word as it is told apart, which reads as `text`."""
        if word not in self._ids:
            self._ids[word] = len(self._texts)
            self._texts.append(text)
        return self._ids[word]

    def of_message(self, message: ChatMessage) -> list[int]:
        words = (f"<{message.role}>", *message.content.split(), "<end>")
        return [self.id(word) for word in words]

    def of_reply(self, reply: str) -> list[int]:
        """The ids that are sampled: unlike those of the same words as text, so that a lost context
        shows, and the last one unlike the same word before it, so that it can end the reply.
        """
        words = re.findall(r"\s*\S+\s*$|\s*\S+", reply) or [""]
        ids = [self.id(f"sampled {word}", word) for word in words[:-1]]
        return [*ids, self.id(f"last {words[-1]}", words[-1])]

    def of_prompt(self, submission: Submission, model_key: str) -> tuple[int, ...]:
        """Token ids of the prompt: the context as it is, and what follows it word by word."""
        if isinstance(submission.prompt, tuple):
            return submission.prompt
        if submission.prompt is not None:
            return tuple(map(self.id, submission.prompt.split()))
        ids: list[int] = []
        first = 0
        context = submission.context
        if context is not None and context.model_key == model_key:
            ids.extend(context.token_ids)
            first = context.num_messages
        for message in submission.messages[first:]:
            ids.extend(self.of_message(message))
        return (*ids, self.id("<assistant>"))

    def of_partial(
        self, submission: Submission, prompt: tuple[int, ...], script: list[int]
    ) -> tuple[tuple[int, ...], int]:
        """Token ids of the prompt that goes on with a scripted reply, and how many are its."""
        context = submission.context
        if submission.num_partial and context and context.num_messages == len(submission.messages):
            # But for what closed the message.
            return tuple(context.token_ids[:-1]), submission.num_partial
        num_partial = len(re.findall(r"\S+", submission.messages[-1].content))
        return (*prompt, *script[:num_partial]), num_partial

    def spell(self, token_ids: Sequence[int]) -> list[str]:
        """Each token as it is told apart."""
        words = list(self._ids)
        return [words[token_id] for token_id in token_ids]

    def text(self, token_ids: tuple[int, ...]) -> str:
        return "".join(self._texts[token_id] for token_id in token_ids)
