"""Channels: the messages that a reply consists of, and its parts, in the format of gpt-oss."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from engine.text.parts import Part, Parts
from engine.text.vocabulary import Vocabulary

_THINKING = "analysis"
_ROLE = "assistant"
_RECIPIENT = "to="
# A header has a role, a channel and perhaps a recipient. What is longer is none, and is shown.
_MAX_HEADER = 256


class Channels(NamedTuple):
    """Token ids of what structures a reply, as in `<|start|>assistant<|channel|>analysis<|message|>
    …<|end|><|start|>assistant<|channel|>final<|message|>…`.

    These are special tokens, so that no text can imitate them.
    """

    start: int
    channel: int
    message: int
    end: int

    @staticmethod
    def find(vocabulary: Vocabulary) -> Channels | None:
        """Those of a vocabulary; None if it has not all of them."""
        ids = {text: token_id for token_id, text in vocabulary.special.items()}
        found = [ids.get(f"<|{name}|>") for name in Channels._fields]
        return Channels(*(i for i in found if i is not None)) if None not in found else None


class _State(Enum):
    HEADER = auto()
    THINKING = auto()
    CONTENT = auto()


class ChannelParts(Parts):
    """The parts of a reply that is a sequence of messages, each on a channel.

    What is said on the channel `analysis` is thinking, and on any other it is content. Headers are
    markup, but for those that name a recipient: a call of a tool is content as it was written.

    Args:
        has_begun: whether the prompt ends in the header of a message, as chat templates let it.
    """

    def __init__(self, channels: Channels, *, has_begun: bool) -> None:
        super().__init__()
        self._channels = channels
        self._state = _State.HEADER if has_begun else _State.CONTENT
        self._header = ""  # it is decided when its message begins
        self._channel: int | None = None  # where the channel's name begins in the header
        self._num_tokens = 0  # of the header, its role left out

    def _read(self, token_id: int | None, text: str) -> None:
        if self._state is _State.HEADER:
            self._read_header(text)
        elif self._state is _State.THINKING:
            self._decide(Part.THINKING, len(text))
        else:
            self._decide(Part.CONTENT, len(text))
        if token_id in (self._channels.start, self._channels.end):
            self._end_header(Part.MARKUP)
            self._turn(_State.HEADER)
        elif token_id == self._channels.channel:
            # A reply may begin with it where the prompt was no chat.
            if _RECIPIENT not in self._header:
                self._end_header(Part.MARKUP)
            self._turn(_State.HEADER)
            self._channel, self._num_tokens = len(self._header), 1
        elif self._state is _State.HEADER and token_id is not None:
            self._num_tokens += 1
            if token_id == self._channels.message:
                self._begin()

    def _read_header(self, text: str) -> None:
        self._header += text
        if len(self._header) > _MAX_HEADER:
            self._end_header(Part.CONTENT)
            self._turn(_State.CONTENT)

    def _begin(self) -> None:
        """The header has ended, and the text of its message begins."""
        name = "" if self._channel is None else self._header[self._channel :]
        self._turn(_State.CONTENT)
        if name.split()[:1] == [_THINKING]:
            self._turn(_State.THINKING)
            self.num_thinking += self._num_tokens
        self._end_header(Part.CONTENT if _RECIPIENT in self._header else Part.MARKUP)

    def _turn(self, state: _State) -> None:
        self._state = state
        self._thinks = state is _State.THINKING

    def _end_header(self, part: Part) -> None:
        self._decide(part, len(self._header))
        self._header, self._channel = "", None

    def _close(self) -> None:
        self._end_header(Part.MARKUP)


def begins_message(prompt_end: str) -> bool:
    """Whether the end of a prompt is the header of a message of the assistant's."""
    return prompt_end.endswith(f"<|start|>{_ROLE}")
