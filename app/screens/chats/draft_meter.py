"""DraftMeter: the number of tokens of the draft."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from app.store.conversation import Attachment
from engine.api.client import EngineClient

# The tokens of a shorter text are estimated; the error is a few tokens.
SHORT = 200
_BYTES_PER_TOKEN = 4.0


@dataclass(frozen=True, slots=True)
class Length:
    """How long a message is.

    Attributes:
        most: the largest possible number of tokens, because no token has less than a byte.
        is_exact: whether all of it was counted, and not estimated.
        is_settled: whether no part of it is still being counted.
    """

    tokens: int = 0
    most: int = 0
    is_exact: bool = True
    is_settled: bool = True


@dataclass(frozen=True, slots=True)
class _Counted:
    """A text that is counted, or was."""

    size: int
    tokens: Future[list[int]]


class DraftMeter:
    """Has the engine count long texts, and estimates short ones by earlier counts.

    Callers ask it repeatedly and never wait. At most one text is being counted besides the
    attachments.
    """

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._model = ""
        self._bytes_per_token = _BYTES_PER_TOKEN
        self._files: dict[Attachment, _Counted] = {}
        self._text = ""
        self._counted: _Counted | None = None

    def measure(
        self, model: str, text: str, attachments: Sequence[Attachment], *, exact: bool = False
    ) -> Length:
        """The length of a message, as far as it is known.

        Args:
            model: the name of the model whose tokens are counted; for another one, everything is
                counted again.
            exact: whether to count even a text that is short enough for an estimate.
        """
        if model != self._model:
            self._model, self._text, self._counted = model, "", None
            self._files.clear()
        self._files = {
            a: self._files.get(a) or self._start_count(a.prompt_text) for a in attachments
        }
        parts = [self._part(self._files[a]) for a in attachments]
        parts.append(self._typed(text, exact))
        return Length(
            sum(part.tokens for part in parts),
            sum(part.most for part in parts),
            all(part.is_exact for part in parts),
            all(part.is_settled for part in parts),
        )

    def tokens_of(self, attachment: Attachment) -> tuple[int, bool]:
        """The number of tokens of a measured attachment, and whether it is exact."""
        part = self._part(self._files[attachment])
        return part.tokens, part.is_exact

    def _typed(self, text: str, exact: bool) -> Length:
        idle = self._counted is None or self._counted.tokens.done()
        differs = abs(len(text) - len(self._text)) >= SHORT
        if idle and text != self._text and (exact or (len(text) >= SHORT and differs)):
            self._text, self._counted = text, self._start_count(text)
        if text == self._text and self._counted is not None:
            return self._part(self._counted)
        size = _size(text)
        return Length(round(size / self._bytes_per_token), size, not text, not (text and exact))

    def _part(self, counted: _Counted) -> Length:
        size = counted.size
        if not counted.tokens.done():
            return Length(round(size / self._bytes_per_token), size, False, False)
        if counted.tokens.exception() is not None:
            return Length(round(size / self._bytes_per_token), size, False)
        tokens = len(counted.tokens.result())
        if size >= SHORT and tokens:
            self._bytes_per_token = size / tokens
        return Length(tokens, size)

    def _start_count(self, text: str) -> _Counted:
        return _Counted(_size(text), self._client.tokenize(text, add_special_tokens=False))


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
