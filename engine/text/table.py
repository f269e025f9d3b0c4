"""TokenTable: decodes token ids as a tokenizer does, without the tokenizer."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

_NO_TOKENS = {"type": "BPE", "vocab": {}, "merges": []}


@dataclass(frozen=True, slots=True)
class Texts:
    """A list of strings as UTF-8: 262,144 tokens take 4 MB, where as `str` they take 18.

    Attributes:
        joined: the strings, with zero bytes between them.
        lengths: bytes of each string; None unless a string contains a zero byte itself.
    """

    joined: bytes
    count: int
    lengths: tuple[int, ...] | None = None

    @classmethod
    def of(cls, strings: Sequence[bytes]) -> Texts:
        return cls.joined_by_zeros(b"\0".join(strings), [*map(len, strings)])

    @classmethod
    def joined_by_zeros(cls, joined: bytes, lengths: Sequence[int]) -> Texts:
        """Strings that were joined already, with their lengths in bytes."""
        is_plain = joined.count(b"\0") == max(len(lengths) - 1, 0)
        return cls(joined, len(lengths), None if is_plain else tuple(lengths))

    def read(self) -> list[str]:
        """The strings.

        Raises:
            UnicodeDecodeError: one is not UTF-8.
        """
        if self.lengths is None:
            return self.joined.decode().split("\0") if self.count else []
        return [
            self.joined[start : start + length].decode()
            for start, length in zip(self.starts(), self.lengths, strict=False)
        ]

    def starts(self) -> list[int]:
        """The offset of each string, and one beyond the zero byte that would end the last one."""
        if self.lengths is None:
            zeros = np.flatnonzero(np.frombuffer(self.joined, np.uint8) == 0) + 1
            return [0, *zeros.tolist(), len(self.joined) + 1]
        return list(accumulate(self.lengths, lambda start, length: start + length + 1, initial=0))


class Added(NamedTuple):
    """A token that is found in a text before the rest is split.

    Attributes:
        special: whether decoding may leave it out.
    """

    content: str
    special: bool


class TokenTable:
    """The decoding side of a tokenizer, in the interface of transformers (`Tokenizer`), except that
    it cannot encode. 262,144 tokens take 10 MB, where a tokenizer takes 66.

    Args:
        tokens: the tokens by id.
        missing: ids without a token.
        added: the added tokens, by id.
        decoder: joins tokens to a text: one of the tokenizers library, or None to join by spaces.
        chat_template, response_template, eos_token_id: of the tokenizer.
    """

    def __init__(
        self,
        tokens: Texts,
        missing: Collection[int],
        added: Mapping[int, Added],
        decoder: Any,
        *,
        chat_template: Any = None,
        response_template: Any = None,
        eos_token_id: Any = None,
    ) -> None:
        self._tokens = tokens
        self._missing = frozenset(missing)
        self._starts = np.array(tokens.starts(), np.int64)
        self._special = frozenset(one.content for one in added.values() if one.special)
        self._added_ids = {one.content: number for number, one in added.items()}
        # Those that were decoded: a token is read in 0.3 us from here, and in 1.2 from the texts.
        self._read: dict[int, str | None] = {}
        self.added_tokens_decoder = added
        self.decoder = decoder
        self.chat_template = chat_template
        self.response_template = response_template
        self.eos_token_id = eos_token_id

    @classmethod
    def of(cls, tokenizer: Any) -> TokenTable | None:
        """The table of a tokenizer; None if only its own code can decode."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            return None
        added = {
            number: Added(one.content, one.special)
            for number, one in tokenizer.added_tokens_decoder.items()
        }
        number = backend.get_vocab_size()
        tokens = [*map(backend.id_to_token, range(number))]
        if None in tokens:  # Ids have gaps, and the list of all takes half as long again.
            ids = backend.get_vocab()
            tokens = [*map(backend.id_to_token, range(max(ids.values()) + 1))]
        missing = [number for number, token in enumerate(tokens) if token is None]
        return cls(
            Texts.of([(token or "").encode() for token in tokens]),
            missing,
            added,
            backend.decoder,
            chat_template=tokenizer.chat_template,
            response_template=getattr(tokenizer, "response_template", None),
            eos_token_id=tokenizer.eos_token_id,
        )

    def pack(self) -> bytes:
        """The table as plain data, for another process.

        Raises:
            Exception: the decoder is code, or a template is no JSON.
        """
        decoder = self.decoder and json.loads(self.decoder.__getstate__())
        head = {
            "count": self._tokens.count,
            "lengths": self._tokens.lengths,
            "missing": sorted(self._missing),
            "added": [(number, *one) for number, one in self.added_tokens_decoder.items()],
            "decoder": decoder,
            "chat_template": self.chat_template,
            "response_template": self.response_template,
            "eos_token_id": self.eos_token_id,
        }
        return json.dumps(head).encode() + b"\n" + self._tokens.joined

    @classmethod
    def unpack(cls, packed: bytes) -> TokenTable:
        """The table that `pack` packed."""
        head, _, joined = packed.partition(b"\n")
        read = json.loads(head)
        lengths = read["lengths"]
        return cls(
            Texts(joined, read["count"], lengths and tuple(lengths)),
            read["missing"],
            {number: Added(*one) for number, *one in read["added"]},
            _decoder(read["decoder"]),
            chat_template=read["chat_template"],
            response_template=read["response_template"],
            eos_token_id=read["eos_token_id"],
        )

    @property
    def backend_tokenizer(self) -> TokenTable:
        """The table itself: `Vocabulary` decodes by a tokenizer's backend."""
        return self

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool) -> str:
        """Decode token ids; ids without a token are skipped."""
        hidden = self._special if skip_special_tokens else ()
        read, tokens = self._read, []
        for token_id in token_ids:
            if token_id not in read:
                read[token_id] = self.convert_ids_to_tokens(token_id)
            token = read[token_id]
            if token is not None and token not in hidden:
                tokens.append(token)
        text: str = " ".join(tokens) if self.decoder is None else self.decoder.decode(tokens)
        return text

    def convert_ids_to_tokens(self, token_id: int) -> str | None:
        """The token of an id; None if it has none."""
        one = self.added_tokens_decoder.get(token_id)
        if one is not None:
            return one.content
        if not 0 <= token_id < self._tokens.count or token_id in self._missing:
            return None
        start, end = self._starts[token_id : token_id + 2]
        return self._tokens.joined[start : end - 1].decode()

    def token_to_id(self, token: str) -> int | None:
        """The id of a token; None if there is no such token."""
        if token in self._added_ids:
            return self._added_ids[token]
        for number in self._places(token.encode()):
            if self.convert_ids_to_tokens(number) == token:
                return number
        return None

    def _places(self, token: bytes) -> Iterator[int]:
        """The ids where a token may be."""
        yield 0
        joined, framed = self._tokens.joined, b"\0" + token + b"\0"
        at = joined.find(framed)
        while at >= 0:
            yield int(np.searchsorted(self._starts, at + 1))
            at = joined.find(framed, at + 1)
        yield self._tokens.count - 1

    def get_vocab(self) -> dict[str, int]:
        """The id of each token."""
        tokens = enumerate(self._tokens.read())
        known = {token: number for number, token in tokens if number not in self._missing}
        return known | self._added_ids


def _decoder(state: Mapping[str, Any] | None) -> Any:
    """The decoder of the tokenizers library with a state."""
    if state is None:
        return None
    from tokenizers import Tokenizer  # It is imported already where a model is loaded.

    whole = {"version": "1.0", "added_tokens": [], "model": _NO_TOKENS, "decoder": state}
    return Tokenizer.from_str(json.dumps(whole)).decoder
