"""Channels: the messages of a reply, and its parts, in the format of gpt-oss."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from engine.text.parts import Part, Parts
from engine.text.vocabulary import Vocabulary

_THINKING = "analysis"
_ROLE = "assistant"
_RECIPIENT = "to="
# A header has a role, a channel and perhaps a recipient. Longer text is not a header, and is shown.
_MAX_HEADER = 256


class Channels(NamedTuple):
    """Token ids of a reply's markup, as in `<|start|>assistant<|channel|>analysis<|message|>
    …<|end|><|start|>assistant<|channel|>final<|message|>…`.

    These are special tokens, so that no text can imitate them.
    """

    start: int
    channel: int
    message: int
    end: int

    @staticmethod
    def find(vocabulary: Vocabulary) -> Channels | None:
        """Find the tokens in a vocabulary; None if one is missing."""
        ids = {text: token_id for token_id, text in vocabulary.special.items()}
        found = [ids.get(f"<|{name}|>") for name in Channels._fields]
        return Channels(*(i for i in found if i is not None)) if None not in found else None


class _State(Enum):
    HEADER = auto()
    THINKING = auto()
    CONTENT = auto()


class ChannelParts(Parts):
    """The parts of a reply that is a sequence of messages, each on a channel.

    Text on the channel `analysis` is thinking, and on any other content. Headers are markup, except
    those with a recipient: a tool call is content as written.

    Args:
        has_begun: whether the prompt ends in a message's header, as chat templates have it.
    """

    def __init__(self, channels: Channels, *, has_begun: bool) -> None:
        super().__init__()
        self._channels = channels
        self._state = _State.HEADER if has_begun else _State.CONTENT
        self._header = ""  # decided when its message begins
        self._channel: int | None = None  # where the channel's name begins in the header
        self._num_tokens = 0  # of the header, without its role

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
            # A reply may begin with it if the prompt was not a chat.
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
        """End the header; the text of its message begins."""
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
    """Whether a prompt ends with the header of an assistant's message."""
    return prompt_end.endswith(f"<|start|>{_ROLE}")
