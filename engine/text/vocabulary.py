"""Vocabulary: a tokenizer's tokens as text, prepared once for many detokenizers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Protocol

REPLACEMENT = "\ufffd"
PROBE_BYTE = ord("A")
# Byte-level BPE writes a byte as the character of the same number if that prints. It writes the
# other bytes, in order, as the characters from U+0100 on (Radford et al., GPT-2, section 2.2).
_PRINTING = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_HIDDEN = (byte for byte in range(256) if byte not in _PRINTING)
_BYTE_LEVEL = {chr(byte): byte for byte in _PRINTING} | {
    chr(0x100 + i): byte for i, byte in enumerate(_HIDDEN)
}
_SPACE = "\u0120"


class Tokenizer(Protocol):
    """The interface of a transformers tokenizer, as far as it is used.

    Only one thread at a time may use it, because a fast tokenizer raises `Already borrowed` if its
    settings change in one thread while another encodes. There is no lock. Tokenizers encode in the
    only thread of a process (`engine.text.pool`); the program has a `TokenTable` in their place,
    or a tokenizer that only its own code decodes, for the engine's text thread.
    """

    @property
    def chat_template(self) -> Any: ...

    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]: ...

    def get_vocab(self) -> dict[str, int]: ...

    def convert_ids_to_tokens(self, ids: int, /) -> Any: ...

    def encode(self, text: str, /, *, add_special_tokens: bool) -> list[int]: ...

    def decode(
        self,
        token_ids: list[int],
        /,
        *,
        skip_special_tokens: bool,
        clean_up_tokenization_spaces: bool,
    ) -> Any: ...

    def apply_chat_template(
        self,
        conversation: list[dict[str, Any]],
        /,
        *,
        add_generation_prompt: bool,
        tokenize: bool,
        **arguments: Any,
    ) -> Any: ...


def _num_bytes(text: str) -> int:
    return len(text.encode(errors="surrogatepass"))


def _source(chat_template: object) -> str:
    if isinstance(chat_template, Mapping):
        return "\n".join(map(str, chat_template.values()))
    return chat_template if isinstance(chat_template, str) else ""


class Vocabulary:
    """The decoding side of a tokenizer.

    Attributes:
        added: text of each added token, by id. The tokenizer finds these in any text before it
            splits the rest.
        special: those of them that the tokenizer calls special, which a reply never shows.
        template: the source of the chat template, or of all if there are several; "" without one.
        response_template: transformers' template for parsing replies; None if there is none.
        bytes: value of each byte token (`<0x00>` to `<0xFF>`), by id; empty unless the tokenizer
            falls back to bytes for unknown characters.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._backend = getattr(tokenizer, "backend_tokenizer", None)
        added = tokenizer.added_tokens_decoder.items()
        self.added: dict[int, str] = {token_id: token.content for token_id, token in added}
        self.special: dict[int, str] = {
            token_id: token.content for token_id, token in added if token.special
        }
        # A tokenizer without a backend makes the whole vocabulary anew at each call.
        id_of = tokenizer.get_vocab().get if self._backend is None else self._backend.token_to_id
        self.bytes = self._byte_tokens(id_of)
        self._plain: dict[int, str | None] | None = {} if self._only_joins_bytes() else None
        space = id_of(_SPACE)
        self._is_byte_level = space is not None and self.decode([space]) == " "
        self.template = _source(tokenizer.chat_template)
        self.response_template: object = getattr(tokenizer, "response_template", None)
        self._utf8 = {token_id: text.encode() for token_id, text in self.added.items()}
        self._utf8 |= {token_id: bytes((byte,)) for token_id, byte in self.bytes.items()}

    @functools.cached_property
    def _extent(self) -> tuple[int, int]:
        ids = self._tokenizer.get_vocab()
        width = len if self._is_byte_level else _num_bytes
        longest = max(map(width, ids), default=0)
        added = max(map(_num_bytes, self.added.values()), default=0)
        return max(ids.values(), default=-1) + 1, max(longest, added)

    @property
    def size(self) -> int:
        """One above the largest token id."""
        return self._extent[0]

    @property
    def longest(self) -> int:
        """Most bytes of UTF-8 that a token may have."""
        return self._extent[1]

    @property
    def has_template(self) -> bool:
        """Whether there is a chat template."""
        return bool(self.template.strip())

    def decode(self, token_ids: list[int], *, names_special: bool = False) -> str:
        """Decode token ids, as the tokenizer's `decode` does.

        Args:
            names_special: whether to include special tokens, by name.
        """
        text: str
        skips = not names_special
        if self._backend is not None:  # The same result, without 5 us of conversions a call.
            text = self._backend.decode(token_ids, skip_special_tokens=skips)
        else:
            text = self._tokenizer.decode(
                token_ids, skip_special_tokens=skips, clean_up_tokenization_spaces=False
            )
        return text

    def utf8(self, token_id: int) -> bytes:
        """The bytes of a token, independent of its place in a text.

        A special token has those of its name, and an id that pads the embedding has none.
        """
        found = self._utf8.get(token_id)
        if found is None:
            found = self._utf8[token_id] = self._spell(token_id)
        return found

    def plain(self, token_id: int) -> str | None:
        """The text of a token after whole characters, whatever they are; None if it depends on them
        or on later text.
        """
        if self._plain is None:
            return None
        try:
            return self._plain[token_id]
        except KeyError:
            text: str | None = None
            if self.is_silent(token_id):
                text = ""
            elif token_id not in self.added and REPLACEMENT not in (own := self.decode([token_id])):
                text = own
            self._plain[token_id] = text
            return text

    def is_silent(self, token_id: int) -> bool:
        """Whether a token never has text: a special one, or an id that pads the embedding."""
        return token_id in self.special or self._tokenizer.convert_ids_to_tokens(token_id) is None

    def _only_joins_bytes(self) -> bool:
        """Whether the text of tokens is exactly that of their bytes, joined: the decoder changes no
        token's text by its neighbours.
        """
        from tokenizers import decoders  # A model is loading, which needs it anyway.

        decoder = getattr(self._backend, "decoder", None)
        return isinstance(decoder, decoders.ByteLevel) and not self.bytes

    def _spell(self, token_id: int) -> bytes:
        token = self._tokenizer.convert_ids_to_tokens(token_id)
        if token is None:
            return b""
        if self._is_byte_level:
            found = [_BYTE_LEVEL.get(char) for char in token]
            return bytes(b for b in found if b is not None) if None not in found else token.encode()
        # Decode it after another token, because the first one of a text may lose its space.
        return self.decode([token_id, token_id]).removeprefix(self.decode([token_id])).encode()

    def _byte_tokens(self, id_of: Callable[[str], int | None]) -> dict[int, int]:
        probe = id_of(f"<0x{PROBE_BYTE:02X}>")
        # Tokens with these names are plain text if the decoder does not join bytes.
        if probe is None or self.decode([probe]) != chr(PROBE_BYTE):
            return {}
        ids = [id_of(f"<0x{byte:02X}>") for byte in range(256)]
        found = {token_id: byte for byte, token_id in enumerate(ids) if token_id is not None}
        return found if len(found) == 256 else {}
