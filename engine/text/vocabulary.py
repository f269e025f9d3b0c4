"""Vocabulary: a tokenizer's tokens as text, made ready once for many detokenizers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

PROBE_BYTE = ord("A")


class Tokenizer(Protocol):
    """What is used of a transformers tokenizer.

    One thread at a time: a fast tokenizer raises `Already borrowed` when its settings change in one
    thread while another encodes. The engine's text thread makes every call, so there is no lock.
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
        self, conversation: list[dict[str, str]], /, *, add_generation_prompt: bool, tokenize: bool
    ) -> Any: ...


class Vocabulary:
    """The decoding side of a tokenizer.

    Attributes:
        size: one above the largest token id.
        special: text of each special token, by id; never shown in a reply.
        bytes: value of each byte token (`<0x00>` to `<0xFF>`), by id; empty unless the tokenizer
            falls back to bytes for characters that it does not know.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._backend = getattr(tokenizer, "backend_tokenizer", None)
        ids = tokenizer.get_vocab()
        self.size = max(ids.values(), default=-1) + 1
        self.special: dict[int, str] = {
            token_id: token.content
            for token_id, token in tokenizer.added_tokens_decoder.items()
            if token.special
        }
        self.bytes = self._byte_tokens(ids)

    def decode(self, token_ids: list[int]) -> str:
        """Text of token ids without special tokens, as the tokenizer's `decode` gives it."""
        text: str
        if self._backend is not None:  # the same without 5 us of conversions a call
            text = self._backend.decode(token_ids, skip_special_tokens=True)
        else:
            text = self._tokenizer.decode(
                token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        return text

    def is_silent(self, token_id: int) -> bool:
        """Whether a token never has text: a special one, or an id that pads the embedding."""
        return token_id in self.special or self._tokenizer.convert_ids_to_tokens(token_id) is None

    def _byte_tokens(self, ids: Mapping[str, int]) -> dict[int, int]:
        found = {ids[token]: byte for byte in range(256) if (token := f"<0x{byte:02X}>") in ids}
        # Tokens of this name are plain text where the decoder does not join bytes.
        joins = len(found) == 256 and self.decode([ids[f"<0x{PROBE_BYTE:02X}>"]]) == chr(PROBE_BYTE)
        return found if joins else {}
