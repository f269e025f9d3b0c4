"""CompletionForm: replies told as OpenAI's text completions are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from app.gateway.http.openai_form import OpenAiForm
from app.gateway.http.protocol.completions import CompletionRequest
from app.gateway.http.replies import (
    Reply,
    compact,
    finish_reason,
    quoted,
    went_well,
)
from engine.api.client import Submission
from engine.api.logprobs import OutputToken
from engine.api.stream import Delta


class CompletionForm(OpenAiForm):
    """As `OpenAiForm`, of texts. A prompt that is echoed stands before its replies.

    Thinking is part of the text: no template was put around the prompt, so that nobody has asked
    for a chat.
    """

    prefix = "cmpl"
    kind = kind_of_chunk = "text_completion"

    def __init__(
        self, asked: CompletionRequest, model: str, submissions: Sequence[Submission]
    ) -> None:
        super().__init__(asked, model, submissions)
        self._asks_logprobs = asked.logprobs is not None
        self._echoes = [one.prompt if asked.echo else "" for one in submissions]
        self._offsets = [0] * len(submissions)

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
        yield self._chunk(f'{body},"finish_reason":{reason}}}')

    def _choice(self, choice: int, reply: Reply) -> dict[str, object]:
        assert reply.finish is not None
        return {
            "index": choice,
            "text": f"{self._echoes[choice]}{reply.thinking}{reply.text}",
            "logprobs": _logprobs(reply.logprobs, 0) if self._asks_logprobs else None,
            "finish_reason": finish_reason(reply.finish),
        }


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
