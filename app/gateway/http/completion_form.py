"""CompletionForm: replies told as OpenAI's text completions are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from app.gateway.faults import Fault
from app.gateway.http.chat_form import DONE
from app.gateway.http.endpoint import error_body
from app.gateway.http.generation import Form, event
from app.gateway.http.protocol.completions import CompletionRequest
from app.gateway.http.replies import (
    Reply,
    compact,
    created,
    finish_reason,
    quoted,
    usage_of,
    went_well,
)
from engine.api.client import Submission
from engine.api.logprobs import OutputToken
from engine.api.stream import Delta


class CompletionForm(Form):
    """The chunks of a stream, or one answer. A prompt that is echoed stands before its replies.

    Thinking is part of the text: no template was put around the prompt, so that nobody has asked
    for a chat.
    """

    def __init__(
        self, asked: CompletionRequest, model: str, submissions: Sequence[Submission]
    ) -> None:
        self._id = submissions[0].request_id
        self._model = model
        self._created = created()
        self._asked = asked
        self._replies = [Reply() for _ in submissions]
        self._echoes = [one.prompt if asked.echo else "" for one in submissions]
        self._offsets = [0] * len(submissions)
        head = {
            "id": f"cmpl-{self._id}",
            "object": "text_completion",
            "created": self._created,
            "model": model,
        }
        self._head = b"data: " + compact(head).encode()[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if asked.includes_usage else b"]}\n\n"

    def take(self, choice: int, delta: Delta) -> None:
        self._replies[choice].take(delta)

    def tell(self, choice: int, delta: Delta) -> Iterator[bytes]:
        reply = self._replies[choice]
        text = delta.thinking + delta.text
        if not reply.is_told:
            reply.is_told = True
            text = f"{self._echoes[choice]}{text}"
        reason = "null"
        if delta.finish is not None and went_well(delta.finish):
            reason = f'"{finish_reason(delta.finish)}"'
        if not (text or delta.logprobs) and reason == "null":
            return
        told = "null"
        if delta.logprobs:
            told = compact(_logprobs(delta.logprobs, self._offsets[choice]))
            self._offsets[choice] += sum(len(one.chosen.text) for one in delta.logprobs)
        body = f'{{"index":{choice},"text":{quoted(text)},"logprobs":{told}'
        yield self._head + f'{body},"finish_reason":{reason}}}'.encode() + self._tail

    def end(self) -> Iterator[bytes]:
        if self._asked.includes_usage:
            usage = compact(self._usage()).encode()
            yield self._head + b'],"usage":' + usage + b"}\n\n"
        yield DONE

    def failed(self, fault: Fault) -> Iterator[bytes]:
        yield event(error_body(fault))
        yield DONE

    def whole(self) -> dict[str, object]:
        return {
            "id": f"cmpl-{self._id}",
            "object": "text_completion",
            "created": self._created,
            "model": self._model,
            "choices": [self._choice(at, reply) for at, reply in enumerate(self._replies)],
            "usage": self._usage(),
        }

    def _choice(self, choice: int, reply: Reply) -> dict[str, object]:
        assert reply.finish is not None
        asks = self._asked.logprobs is not None
        return {
            "index": choice,
            "text": f"{self._echoes[choice]}{reply.thinking}{reply.text}",
            "logprobs": _logprobs(reply.logprobs, 0) if asks else None,
            "finish_reason": finish_reason(reply.finish),
        }

    def _usage(self) -> dict[str, object]:
        """The counts of all prompts and replies."""
        per_prompt = [
            usage_of(self._replies[at : at + self._asked.choices])
            for at in range(0, len(self._replies), self._asked.choices)
        ]
        total = dict(per_prompt[0])
        for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
            total[name] = sum(one[name] for one in per_prompt)  # type: ignore[misc]
        return total


def _logprobs(tokens: Sequence[OutputToken], offset: int) -> dict[str, object]:
    """Tokens in the form of text completions.

    Args:
        offset: characters of the reply before them.
    """
    lengths = (len(token.chosen.text) for token in tokens)
    return {
        "tokens": [token.chosen.text for token in tokens],
        "token_logprobs": [token.chosen.logprob for token in tokens],
        "top_logprobs": [{one.text: one.logprob for one in token.top} for token in tokens],
        "text_offset": list(accumulate(lengths, initial=offset))[: len(tokens)],
    }
