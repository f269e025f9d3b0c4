"""Completions: /v1/completions, and the format of its replies."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple

from app.gateway.http.chat_completions import title
from app.gateway.http.generation import Generation
from app.gateway.http.openai_form import OpenAiForm
from app.gateway.http.protocol.completions import CompletionRequest
from app.gateway.http.replies import (
    Reply,
    finish_reason,
    quoted,
    went_well,
)
from app.gateway.logprobs import finite, prompt_logprobs
from app.gateway.sources import HTTP
from engine.api.client import Submission, new_request_id
from engine.api.logprobs import Candidate, OutputToken, PromptToken
from engine.api.origin import Origin
from engine.api.stream import Delta


class CompletionForm(OpenAiForm):
    """As `OpenAiForm`, for texts. With `echo` the prompt precedes its replies, and with `logprobs`
    its tokens precede theirs.

    Thinking is part of the text, with its tags: no template surrounds the prompt, so the client did
    not request a chat, and may look for the tags itself.
    """

    prefix = "cmpl"
    kind = kind_of_chunk = "text_completion"

    def __init__(
        self, asked: CompletionRequest, model: str, submissions: Sequence[Submission]
    ) -> None:
        super().__init__(asked, model, submissions)
        self._asked = asked
        self._prompts = [one.prompt for one in submissions]
        self._echoes_tokens = bool(asked.echo) and asked.logprobs is not None
        self._places = [_Places() for _ in submissions]
        self._held: dict[int, list[Delta]] = {}

    def delta_events(self, choice: int, delta: Delta) -> Iterator[bytes]:
        if not self._echoes_tokens:
            yield from self._chunks(choice, delta)
            return
        # The tokens of a prompt come with its first reply, and the other replies wait for them.
        first = self._first(choice)
        if not (self._replies[first].num_tokens or self._replies[first].finish):
            self._held.setdefault(choice, []).append(delta)
            return
        for other in range(first, first + self._choices):
            for before in self._held.pop(other, ()):
                yield from self._chunks(other, before)
        yield from self._chunks(choice, delta)

    def _chunks(self, choice: int, delta: Delta) -> Iterator[bytes]:
        reply = self._replies[choice]
        text = delta.thinking + delta.text
        reason = "null"
        if delta.finish is not None and went_well(delta.finish):
            reason = f'"{finish_reason(delta.finish)}"'
        if not (text or delta.logprobs) and reason == "null":
            return
        prompt: Sequence[PromptToken] = ()
        if not reply.is_sent:
            reply.is_sent = True
            prompt = self._prompt(choice)
            text = f"{self._echo(choice)}{text}"
        before = f'{{"index":{choice},"text":{quoted(text)},"logprobs":'
        after = f',"finish_reason":{reason}}}'
        if prompt or delta.logprobs:
            payload = self._logprobs(choice, prompt, delta.logprobs)
            yield from self._chunk_with(before, payload, after)
        else:
            yield self._chunk(f"{before}null{after}")

    def _choice(self, choice: int, reply: Reply) -> dict[str, object]:
        assert reply.finish is not None
        asks = self._asked.logprobs is not None
        logprobs = self._logprobs(choice, self._prompt(choice), reply.logprobs) if asks else None
        payload: dict[str, object] = {
            "index": choice,
            "text": f"{self._echo(choice)}{reply.thinking}{reply.text}",
            "logprobs": logprobs,
            "finish_reason": finish_reason(reply.finish),
        }
        if (number := self._asked.prompt_logprobs) is not None:
            prompt = self._replies[self._first(choice)].prompt
            payload["prompt_logprobs"] = prompt_logprobs(prompt, number)
        return payload

    def _first(self, choice: int) -> int:
        """The first reply to the same prompt."""
        return choice - choice % self._choices

    def _prompt(self, choice: int) -> Sequence[PromptToken]:
        """The prompt tokens that precede a reply."""
        return self._replies[self._first(choice)].prompt if self._echoes_tokens else ()

    def _echo(self, choice: int) -> str:
        """The text that precedes a reply."""
        prompt = self._prompts[choice] if self._asked.echo else ""
        return prompt if isinstance(prompt, str) else _text(self._prompt(choice))

    def _logprobs(
        self, choice: int, prompt: Sequence[PromptToken], output: Sequence[OutputToken]
    ) -> dict[str, object]:
        """The next tokens of a reply, in the form of text completions, as iterators that must be
        consumed in order.
        """
        number, places = self._asked.logprobs or 0, self._places[choice]
        if prompt:
            # Tokens that the tokenizer puts before a text are not part of it.
            echo = len(self._echo(choice))
            places.at = echo - len(_text(prompt))
        placed: list[_Placed] = []

        def texts() -> Iterator[str]:
            for one in prompt:
                placed.append(places.place(one.token_id, one.utf8, one.logprob, one.top[:number]))
                yield placed[-1].text
            if prompt:
                places.at = echo
            for out in output:
                placed.append(places.place(*out.chosen, out.top))
                yield placed[-1].text

        return {
            "tokens": texts(),
            "token_logprobs": (one.logprob for one in placed),
            "top_logprobs": (one.top for one in placed),
            "text_offset": (one.offset for one in placed),
        }


class _Placed(NamedTuple):
    """A token in the form of text completions."""

    text: str
    logprob: float | None
    top: dict[str, float] | None
    offset: int


class _Places:
    """The offsets of a reply's tokens in its text. Tokens that share a character all have its
    offset.

    Attributes:
        at: offset of the next token, in characters.
    """

    def __init__(self) -> None:
        self.at = 0
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def place(
        self, token_id: int, utf8: bytes, logprob: float | None, top: Sequence[Candidate]
    ) -> _Placed:
        """The next token."""
        text, offset = _name(utf8), max(self.at, 0)
        self.at += len(self._utf8.decode(utf8))
        if logprob is None:
            return _Placed(text, None, None, offset)
        # Tokens of the same text have a key each; that of the token itself is its text.
        keys = {text: token_id}
        likeliest: dict[str, float] = {}
        for one in top:
            name = _name(one.utf8)
            if keys.setdefault(name, one.token_id) != one.token_id:
                name = f"token_id:{one.token_id}"
            likeliest[name] = finite(one.logprob)
        return _Placed(text, finite(logprob), likeliest, offset)


def _name(utf8: bytes) -> str:
    """The text of a token; of one that is part of a character, its bytes as OpenAI writes them."""
    try:
        return utf8.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in utf8)


def _text(prompt: Sequence[PromptToken]) -> str:
    return b"".join(one.utf8 for one in prompt).decode(errors="replace")


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
