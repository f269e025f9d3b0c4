"""ContentGuard: keeps what messages say from becoming tokens that only a template may write."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from engine.api.client import ChatMessage
from engine.api.errors import InvalidRequestError
from engine.text.vocabulary import Tokenizer, Vocabulary

TokenIds = TypeVar("TokenIds", bound=list[int] | None)

# WORD JOINER is not seen and not white space, so no template trims it. A blank is for tokenizers
# whose normalizer drops what is not seen.
_BREAKERS = ("\u2060", " ")
_HARMLESS = "x"
_UNKNOWN = "\U00013000"  # a hieroglyph: no tokenizer has a token for it but by its bytes
# Beside `<|im_start|>` some tokenizers add words, digits and runs of blanks.
_MARKER = re.compile(r"[^\w\s].*\w.*[^\w\s]", re.DOTALL)


class ContentGuard:
    """Encodes chats in which no message can end its turn, or begin one of another role.

    A tokenizer takes the text of its special tokens for these tokens wherever it stands, so that
    with `<|im_end|>` in it a question would go on as the system's message.

    Guarded are the special tokens that are not blank, and those added tokens that the tokenizer
    does not call special though the template marks turns with them (`<|im_start|>` in many tuned
    models). Not guarded are other added tokens (`<think>`, `<tool_call>`), which templates look for
    in replies, and what a template marks turns with that is no token (`[INST]` of Llama 2, `user:`
    where there is no template): that, any text can imitate.

    Args:
        turns: what the template writes before messages that are no replies.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: Vocabulary, turns: str) -> None:
        guarded = {token_id: text for token_id, text in vocabulary.special.items() if text.strip()}
        guarded |= {
            token_id: text
            for token_id, text in vocabulary.added.items()
            if text in turns and _MARKER.fullmatch(text)
        }
        self._texts = tuple(guarded.values())
        # Any text may become the token of unknown characters, or those of their bytes.
        unknown = tokenizer.encode(_UNKNOWN, add_special_tokens=False)
        self._ids = guarded.keys() - set(unknown) - vocabulary.bytes.keys()
        self._breaker = _BREAKERS[0]
        for breaker in _BREAKERS:
            broken = "\n".join(self._break(text, breaker) for text in self._texts)
            if not self._count(tokenizer.encode(broken, add_special_tokens=False)):
                self._breaker = breaker
                break

    def encode(
        self,
        messages: Sequence[ChatMessage],
        encode: Callable[[Sequence[ChatMessage]], TokenIds],
    ) -> TokenIds:
        """Token ids without a guarded token that the same chat of harmless words has not.

        Text that spells one gets an invisible character after its first; a token of one character
        is left out. All other chats are encoded as they are. If the template or a normalizer puts a
        token together from what only becomes one there, every character is set apart.

        Args:
            encode: renders and encodes a chat; None if it cannot.

        Raises:
            InvalidRequestError: as `encode`, or the template takes apart what was set apart.
        """
        token_ids = encode([replace(m, content=self._break(m.content)) for m in messages])
        if token_ids is None:
            return token_ids
        most = self._count(encode([replace(m, content=_blank(m.content)) for m in messages]))
        if self._count(token_ids) <= most:
            return token_ids
        token_ids = encode([replace(m, content=self._spread(m.content)) for m in messages])
        if token_ids is None or self._count(token_ids) <= most:
            return token_ids
        raise InvalidRequestError(
            "messages spell a special token of the model that its chat template cannot be kept "
            "from putting together",
            "messages",
        )

    def _count(self, token_ids: list[int] | None) -> Counter[int]:
        return Counter(token_id for token_id in token_ids or () if token_id in self._ids)

    def _break(self, content: str, breaker: str = "") -> str:
        breaker = breaker or self._breaker
        for text in self._texts:
            if text in content:
                # At each occurrence, also where two overlap.
                broken = r"\g<0>" + breaker if len(text) > 1 else breaker
                content = re.sub(f"(?={re.escape(text)}).", broken, content, flags=re.DOTALL)
        return content

    def _spread(self, content: str) -> str:
        text = content.strip()
        if not text:
            return content
        head, _text, tail = content.partition(text)
        return f"{head}{self._breaker}{self._breaker.join(text)}{self._breaker}{tail}"


def _blank(content: str) -> str:
    """A harmless word for any but blank content, which templates may treat otherwise."""
    return _HARMLESS if content.strip() else content
