"""Detokenizer: decodes a growing sequence of token ids, piece by piece."""

from __future__ import annotations

import codecs

from engine.text.vocabulary import REPLACEMENT, Vocabulary

# A character has at most 4 bytes, so an incomplete one lies within the last 3 tokens. The text that
# follows does not depend on earlier tokens.
NUM_KEPT = 3
MAX_WINDOW = 16

_ESCAPED_BYTES = {0xDC80 + i: REPLACEMENT for i in range(128)}


class Detokenizer:
    """Incremental detokenization of one reply.

    The concatenated pieces equal the tokenizer's own `decode` of all ids, without special tokens,
    with one difference. In a run of byte tokens that is not valid UTF-8 as a whole, the valid
    characters are kept; the tokenizers library returns U+FFFD for each byte of the run.

    A token's text depends on its neighbours (byte-level BPE splits characters, metaspace and
    WordPiece tokenizers drop the space before the first word), so the tokenizer decodes each new
    token with a short window of those before it. However long the reply is, a token costs the
    decoding of at most some `MAX_WINDOW` tokens, which takes 4 us with a fast tokenizer. If a
    tokenizer only joins bytes, as most do, a token of whole characters after whole characters
    always has the same text, which takes 0.3 us.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._window: list[int] = []
        self._num_shown = 0  # characters of the window's text already output
        self._held = ""  # the rest of it: a last U+FFFD, which may be half a character
        # Bytes outside any character decode to one surrogate each, because byte fallback counts
        # each of them.
        self._utf8 = codecs.getincrementaldecoder("utf-8")("surrogateescape")

    def push(self, token_id: int) -> str:
        """Add a token; returns the text that is now certain. Incomplete characters are held."""
        if not self._held:
            plain = self._vocabulary.plain(token_id)
            if plain is not None:
                # Later text does not depend on anything before it.
                self._window, self._num_shown = [], 0
                return plain
        if self._vocabulary.is_silent(token_id):
            return ""
        byte = self._vocabulary.bytes.get(token_id)
        if byte is not None:
            return self._push_byte(token_id, byte)
        broken = self._decode_bytes(b"", final=True)
        self._window.append(token_id)
        text = self._vocabulary.decode(self._window)
        # Only the last U+FFFD can be the beginning of a character: a decoder returns one for all
        # bytes of an incomplete sequence. A U+FFFD that the model wrote waits for one token.
        end = len(text) - text.endswith(REPLACEMENT)
        piece = text[self._num_shown : end]
        self._num_shown = end
        self._held = text[end:]
        if len(self._window) >= MAX_WINDOW:
            self._window = self._window[-NUM_KEPT:]
            self._num_shown = len(self._vocabulary.decode(self._window)) - len(self._held)
        return broken + piece

    def flush(self) -> str:
        """Return the text held back at the end of a reply: U+FFFD for an incomplete character."""
        held, self._held = self._held, ""
        return held + self._decode_bytes(b"", final=True)

    def _push_byte(self, token_id: int, byte: int) -> str:
        # The run of byte tokens ends at the next token of another kind, so the last one of the run
        # suffices as the window.
        alone = self._vocabulary.decode([token_id])
        text = self._decode_bytes(bytes((byte,)))
        if not self._window and byte < 0x80:
            text = alone  # The tokenizer may drop a space that begins the reply.
        held, self._held = self._held, ""
        self._window = [token_id]
        self._num_shown = len(alone)
        return held + text

    def _decode_bytes(self, data: bytes, final: bool = False) -> str:
        return self._utf8.decode(data, final).translate(_ESCAPED_BYTES)
