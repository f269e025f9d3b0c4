"""ContentGuard: prevents message text from becoming tokens that only a template may write."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from engine.api.client import ChatMessage
from engine.api.errors import InvalidRequestError
from engine.text.messages import changed
from engine.text.vocabulary import Tokenizer, Vocabulary

TokenIds = TypeVar("TokenIds", bound=list[int] | None)

# WORD JOINER is invisible but not white space, so that no template trims it. The blank is for
# tokenizers whose normalizer drops invisible characters.
_BREAKERS = ("\u2060", " ")
_HARMLESS = "x"
_UNKNOWN = "\U00013000"  # a hieroglyph, which tokenizers can only encode as bytes
# An added token can mark a turn if punctuation encloses a word in it, as in `<|im_start|>`. Some
# tokenizers also add words, digits and runs of blanks, which mark nothing.
_PLAIN = re.compile(r"[\w.:-]+")
_WORD = re.compile(r"\S+")
_LETTER = re.compile(r"[^\W\d_]")
_MARKER = re.compile(r"[^\w\s].*\w.*[^\w\s]", re.DOTALL)


class ContentGuard:
    """Encodes chats such that no message can end its turn, or begin one of another role.

    A tokenizer encodes text that spells a special token as that token. So a question that contains
    `<|im_end|>` could continue as a system message.

    The guard covers non-blank special tokens, and added tokens that the tokenizer does not call
    special although the template marks turns with them (`<|im_start|>` in many tuned models,
    `</tool_response>`). It lets other added tokens pass (`<think>`, `<tool_call>`), because
    templates look for them in replies. It cannot guard turn marks that are not tokens (`[INST]` of
    Llama 2, `user:` without a template), because any text can imitate them.

    Args:
        vocabulary: vocabulary of the same tokenizer.
        turns: the text that the template writes before messages other than replies, and after those
            of tools.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: Vocabulary, turns: str) -> None:
        guarded = {token_id: text for token_id, text in vocabulary.special.items() if text.strip()}
        guarded |= {
            token_id: text
            for token_id, text in vocabulary.added.items()
            if text in turns and _MARKER.fullmatch(text)
        }
        self._texts = tuple(guarded.values())
        self._known = frozenset(self._texts)
        self._lengths: dict[str, list[int]] = {}
        for first, length in sorted({(text[0], len(text)) for text in self._texts}):
            self._lengths.setdefault(first, []).append(length)
        self._firsts = re.compile("|".join(map(re.escape, self._lengths)))
        self._edges = {edge for text in self._texts for edge in (text[0], text[-1])}
        # Any text may become the token for unknown characters, or the tokens for bytes.
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
        """Encode a chat with no more guarded tokens than the same chat with harmless words.

        Text that spells a guarded token gets an invisible character after its first character; a
        token of one character is replaced by the invisible one. All other text is encoded
        unchanged. If the template or a normalizer assembles a guarded token from text that did not
        spell it, the whole chat is encoded with its characters separated.

        Args:
            encode: renders a chat and returns its token ids, or None if it cannot. All of the
                messages except their roles may change.

        Returns:
            the result of `encode`.

        Raises:
            InvalidRequestError: as `encode`; or a guarded token is assembled even then.
        """
        token_ids = encode(_changed(messages, self.harmless))
        if token_ids is None:
            return token_ids
        most = self._most(messages, encode)
        if self._count(token_ids) <= most:
            return token_ids
        token_ids = encode(_changed(messages, self._spread, self._spread_name))
        if token_ids is None or self._count(token_ids) <= most:
            return token_ids
        raise InvalidRequestError(
            "messages spell a special token of the model, and its chat template puts it together "
            "again after it was broken up",
            "messages",
        )

    def _most(
        self,
        messages: Sequence[ChatMessage],
        encode: Callable[[Sequence[ChatMessage]], TokenIds],
    ) -> Counter[int]:
        """Count the guarded tokens of the same chat with harmless words.

        A template may refuse the harmless words where it expects something else; that is not the
        chat's fault. Then only words that may be part of a token are replaced, or the characters
        are separated instead.
        """
        for change, change_name in ((_blank, self._blank_name), (self._blank_words, None)):
            with suppress(InvalidRequestError):
                return self._count(encode(_changed(messages, change, change_name)))
        return self._count(encode(_changed(messages, self._spread, self._spread_name)))

    def _blank_words(self, text: str) -> str:
        return _WORD.sub(lambda word: self._blank_name(word[0]), text)

    def _blank_name(self, name: str) -> str:
        """Keep a name or an id, because templates look it up and check it, unless a special token
        could be assembled with it: then replace its letters.
        """
        return _LETTER.sub(_HARMLESS, self.harmless(name)) if self._may_be_part(name) else name

    def _spread_name(self, name: str) -> str:
        return self._spread(name) if self._may_be_part(name) else name

    def _may_be_part(self, name: str) -> bool:
        """Whether a guarded token, or a part of one at its edge, may be in a name. Most tokens
        begin and end with characters that are not in plain names.
        """
        if _PLAIN.fullmatch(name) is None:
            return True
        return any(name in text for text in self._texts) or not self._edges.isdisjoint(name)

    def harmless(self, text: str) -> str:
        """Make a text spell no guarded token."""
        return self._break(text, self._breaker)

    def _count(self, token_ids: list[int] | None) -> Counter[int]:
        return Counter(token_id for token_id in token_ids or () if token_id in self._ids)

    def _break(self, content: str, breaker: str) -> str:
        """Insert a breaker into each guarded token of a text. Gemma has 6,249 of these, so they are
        not searched one by one.
        """

        def break_one(found: re.Match[str]) -> str:
            first, begin = found.group(), found.start()
            for length in self._lengths[first]:
                if content[begin : begin + length] in self._known:
                    return first + breaker if length > 1 else breaker
            return first

        return self._firsts.sub(break_one, content) if self._texts else content

    def _spread(self, content: str) -> str:
        text = content.strip()
        if not text:
            return content
        head, _text, tail = content.partition(text)
        return f"{head}{self._breaker}{self._breaker.join(text)}{self._breaker}{tail}"


def _changed(
    messages: Sequence[ChatMessage],
    change: Callable[[str], str],
    change_name: Callable[[str], str] | None = None,
) -> list[ChatMessage]:
    return [changed(message, change, change_name) for message in messages]


def _blank(content: str) -> str:
    """Replace content by a harmless word. Templates may treat blank content differently, so that is
    unchanged.
    """
    return _HARMLESS if content.strip() else content
