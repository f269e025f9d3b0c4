"""Tags: the tags around a reply's thinking, and the parts of a reply with such tags."""

from __future__ import annotations

from enum import Enum, auto
from itertools import chain
from typing import NamedTuple

from engine.text.parts import Part, Parts
from engine.text.vocabulary import Vocabulary

# As in chat templates. Which of them a model writes shows in its own template or tokens.
_KNOWN = (
    ("<think>", "</think>"),  # DeepSeek R1, Qwen3, GLM, MiniMax, Nemotron, Phi-4, Olmo, SmolLM3
    ("[THINK]", "[/THINK]"),  # Mistral
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Cohere
    ("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
    ("<seed:think>", "</seed:think>"),  # Seed-OSS
    ("<thought>", "</thought>"),  # EXAONE Deep
    ("<thinking>", "</thinking>"),
    ("\u25c1think\u25b7", "\u25c1/think\u25b7"),  # Kimi
)
# Names of the message field for thinking in templates.
FIELDS = ("thinking", "reasoning_content", "reasoning")
# A closing tag after one of these is quoted, and does not end the thinking.
_QUOTES = frozenset("`'\"\u2018\u201c\u00ab")


class Tags(NamedTuple):
    """The texts before and after the thinking of a reply.

    Attributes:
        open_id, close_id: their token ids, if they are special tokens, whose text never appears.
    """

    open: str
    close: str
    open_id: int | None = None
    close_id: int | None = None

    @staticmethod
    def find(vocabulary: Vocabulary, *, begins_thinking: bool = False) -> Tags | None:
        """Find the tags around a model's thinking; None if it is not known to think.

        They are those in transformers' response template for this tokenizer, or else known ones
        that the chat template writes or looks for, or that are tokens of the vocabulary.

        Args:
            begins_thinking: whether the model's entry says that it thinks
                (`ModelEntry.begins_thinking`); without known tags it has the commonest ones.
        """
        template, added = vocabulary.template, frozenset(vocabulary.added.values())
        known = (pair for pair in _KNOWN if pair[1] in template or added.issuperset(pair))
        last = _KNOWN[:1] if begins_thinking else ()
        pair = next(chain(_stated(vocabulary.response_template), known, last), None)
        if pair is None:
            return None
        ids = {text: token_id for token_id, text in vocabulary.special.items()}
        return Tags(*pair, ids.get(pair[0]), ids.get(pair[1]))

    def are_open(self, prompt_end: str, *, begins: bool) -> bool:
        """Whether a reply behind a prompt begins as thinking.

        Only the end of the prompt shows that. A template that cuts old replies at the closing tag
        does not show how new ones begin: with Qwen3 they need not think. Neither does a template
        that writes the closing tag alone before old replies: with DeepSeek V3.1 and GLM-4.7 it
        marks replies without thinking.

        Args:
            begins: whether replies begin as thinking unless the prompt closes it.
        """
        end = prompt_end.rstrip()
        return end.endswith(self.open) or (begins and not end.endswith(self.close))


def _stated(response_template: object) -> list[tuple[str, str]]:
    """The tags in a response template of transformers, if it has any."""
    found = []
    for name in FIELDS:
        field = _at(_at(response_template, "fields"), name)
        match _at(field, "open"), _at(field, "close"):
            case str(start), str(end) if start.strip() and end.strip():
                found.append((start.strip(), end.strip()))
    return found


def _at(value: object, key: str) -> object:
    return value.get(key) if isinstance(value, dict) else None


class _State(Enum):
    START = auto()  # only white space and a part of the opening tag so far
    OPENED = auto()  # as START, but the prompt ends with the opening tag
    LEAD = auto()  # no line of the thinking has begun
    THINKING = auto()
    CLOSED = auto()  # nothing but white space and a part of the opening tag has come since
    UNOPENED = auto()  # content of a reply without any tag so far
    CONTENT = auto()


class TaggedParts(Parts):
    """The parts of a reply that may begin with thinking between tags.

    Thinking stands at the beginning of a reply, or nowhere: a tag that a reply quotes later is
    content. It may be in several blocks with nothing between them: models open another block after
    an empty one. A reply may begin with the closing tag. Line breaks around the tags are markup, as
    templates have it.

    A closing tag after content, without an opening one before it, is markup too. The content stays
    content, because a stream has sent it by then.

    Args:
        is_open: whether the reply begins as thinking (`Tags.are_open`).
    """

    def __init__(self, tags: Tags, *, is_open: bool) -> None:
        super().__init__()
        self._tags = tags
        self._turn(_State.OPENED if is_open else _State.START)
        self._held = ""  # text that is not decided
        self._num_tokens = 0  # until thinking begins, or begins again
        self._has_thought = False
        self._last = ""  # the last character of the content, while it is `UNOPENED`

    def _read(self, token_id: int | None, text: str) -> None:
        if self._state is _State.THINKING and not self._held and self._is_plain(text):
            self._decide(Part.THINKING, len(text))  # the usual case
            self._has_thought |= bool(text)
            text = ""
        elif self._state is _State.UNOPENED and not self._held and self._is_untagged(text):
            self._decide(Part.CONTENT, len(text))  # the usual case of a reply without thinking
            self._last = text[-1:] or self._last
            text = ""
        self._num_tokens += token_id is not None
        if text:
            self._held += text
            self._advance()
        if token_id is None:
            return
        starts = self._state in (_State.START, _State.OPENED, _State.CLOSED)
        if token_id == self._tags.open_id and starts and not self._held.strip():
            self._open(len(self._held), 0)
        elif token_id == self._tags.close_id and self._thinks:
            self._end_thinking(len(self._held), 0)
            self._advance()
        elif token_id == self._tags.close_id and starts and not self._held.strip():
            self._decide_held(Part.MARKUP, len(self._held))
            self._turn(_State.CLOSED)
        elif self._state is _State.UNOPENED and token_id in self._tags[2:]:
            self.closes_unopened = token_id == self._tags.close_id
            self._settle()

    def _close(self) -> None:
        if self._state is _State.CLOSED:
            self._skip_breaks(_State.CONTENT)
        self._decide_held(Part.THINKING if self._thinks else Part.CONTENT, len(self._held))

    def _is_plain(self, text: str) -> bool:
        """Whether no part of a text may belong to the end of the thinking."""
        return "\n" not in text and self._tags.close[0] not in text

    def _is_untagged(self, text: str) -> bool:
        """Whether no part of a text may belong to a tag."""
        return self._tags.open[0] not in text and self._tags.close[0] not in text

    def _turn(self, state: _State) -> None:
        self._state = state
        self._thinks = state in (_State.OPENED, _State.LEAD, _State.THINKING)

    def _advance(self) -> None:
        """Decide what can be decided of the text that is held."""
        length = -1
        while length != len(self._held):  # Blocks may follow one another.
            length = len(self._held)
            if self._state in (_State.START, _State.OPENED, _State.CLOSED):
                self._find_beginning()
            if self._state is _State.LEAD:
                self._skip_breaks(_State.THINKING)
            if self._state is _State.THINKING:
                self._find_end()
            if self._state is _State.UNOPENED:
                self._find_unopened_end()
        if self._state is _State.CONTENT:
            self._settle()

    def _settle(self) -> None:
        """From here on, all text is content."""
        self._turn(_State.CONTENT)
        self._decide_held(Part.CONTENT, len(self._held))
        self._is_settled = True

    def _find_beginning(self) -> None:
        begun, tag, close = self._held.lstrip(), self._tags.open, self._tags.close
        blank, may_close = len(self._held) - len(begun), self._state is not _State.OPENED
        if begun.startswith(tag):
            self._open(blank, len(tag))
        elif may_close and begun.startswith(close):
            self._decide_held(Part.MARKUP, blank + len(close))
            self._turn(_State.CLOSED)
        elif tag.startswith(begun) or (may_close and close.startswith(begun)):
            return
        elif self._state is _State.CLOSED:
            self._skip_breaks(_State.CONTENT)
        else:
            # A model may repeat the tag with which the prompt ends, so it was searched for.
            self._turn(_State.LEAD if self._state is _State.OPENED else _State.UNOPENED)

    def _open(self, blank: int, tag: int) -> None:
        """Begin the thinking after these numbers of characters of the held text: blanks, then the
        tag."""
        if self._state in (_State.START, _State.CLOSED):
            self.num_thinking += self._num_tokens
        self._decide_held(Part.THINKING if self._has_thought else Part.MARKUP, blank)
        self._decide_held(Part.MARKUP, tag)
        self._turn(_State.LEAD)

    def _find_end(self) -> None:
        tag = self._tags.close
        at = self._held.find(tag)
        if at >= 0:
            self._end_thinking(at, len(tag))
            return
        sure = len(self._held) - _overlap(self._held, tag)
        self._decide_held(Part.THINKING, len(self._held[:sure].rstrip("\n")))

    def _find_unopened_end(self) -> None:
        """Find the first tag in content. An opening tag, or a quoted one, does not end thinking."""
        opening, close = self._held.find(self._tags.open), self._held.find(self._tags.close)
        if close >= 0 and not 0 <= opening < close:
            before = self._held[close - 1] if close else self._last
            if before not in _QUOTES:
                self._decide_held(Part.CONTENT, close)
                self._decide_held(Part.MARKUP, len(self._tags.close))
                self.closes_unopened = True
            self._turn(_State.CONTENT)
        elif opening >= 0:
            self._turn(_State.CONTENT)
        else:
            cut = max(_overlap(self._held, tag) for tag in self._tags[:2])
            sure = len(self._held) - cut
            self._last = self._held[:sure][-1:] or self._last
            self._decide_held(Part.CONTENT, sure)

    def _end_thinking(self, length: int, tag: int) -> None:
        """End the thinking: `length` characters of the held text, then the tag."""
        said = len(self._held[:length].rstrip("\n"))
        self._decide_held(Part.THINKING, said)
        self._decide_held(Part.MARKUP, length - said + tag)
        self._turn(_State.CLOSED)
        self._num_tokens = 0

    def _skip_breaks(self, state: _State) -> None:
        """Treat line breaks as markup; change to `state` at another character."""
        self._decide_held(Part.MARKUP, len(self._held) - len(self._held.lstrip("\n")))
        if self._held:
            self._turn(state)

    def _decide_held(self, part: Part, length: int) -> None:
        self._has_thought |= part is Part.THINKING and length > 0
        self._decide(part, length)
        self._held = self._held[length:]


def _overlap(text: str, tag: str) -> int:
    """Length of the longest suffix of a text that is a proper prefix of a tag."""
    most = min(len(text), len(tag) - 1)
    return next((n for n in range(most, 0, -1) if text.endswith(tag[:n])), 0)
