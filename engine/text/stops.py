"""StopMatcher: finds stop strings in streamed text and holds back text that may begin one."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache


@lru_cache(maxsize=256)
def _borders(text: str) -> array[int]:
    """At i, the length of the longest proper prefix of text[:i + 1] that is also its suffix.

    The n replies to a request search for the same strings, so they share the result: for 16 strings
    of 4.1 MB, 64 replies held 3.6 GB.
    """
    borders = array("I", bytes(array("I").itemsize * len(text)))
    for i in range(1, len(text)):
        borders[i] = _extend(text, borders, borders[i - 1], text[i])
    return borders


def _extend(text: str, borders: array[int], matched: int, char: str) -> int:
    while matched and text[matched] != char:
        matched = borders[matched - 1]
    return matched + (text[matched] == char)


class Pattern:
    """Progress of one string through a text (Knuth, Morris and Pratt, 1977, section 2).

    The time is linear in the text and the string, whatever string a stranger sends.

    Attributes:
        text: the string, which is not empty.
        matched: length of the longest proper prefix of the string with which the text ends.
    """

    __slots__ = ("_borders", "matched", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._borders = _borders(text)
        self.matched = 0

    def advance(self, char: str) -> bool:
        """Whether the string ends with this next character of the text."""
        matched = _extend(self.text, self._borders, self.matched, char)
        ends = matched == len(self.text)
        self.matched = self._borders[-1] if ends else matched
        return ends


class StopMatcher:
    """Matches stop strings on text across token borders.

    The output ends at the stop string that is complete first. If several are complete with the same
    character, the longest counts. So the cut does not depend on how the text is split into tokens.
    A stop string counts only if its last character is in the text of a token numbered `min_tokens`
    or more, from 1; it may begin in an earlier one. Special tokens have no text and are matched by
    their whole names: clients state `<|im_end|>`, or a name and the text after it.

    Attributes:
        stopped_at: number of the token in whose text a stop string ended; None while none has.
        stopped_by: that stop string.
    """

    def __init__(self, stops: Sequence[str], min_tokens: int = 0) -> None:
        self._patterns = [Pattern(stop) for stop in stops]
        self._min_tokens = min_tokens
        # What may begin a stop string: its characters, or "" and then None for those of a name.
        self._held: list[str | None] = []
        self.stopped_at: int | None = None
        self.stopped_by: str | None = None

    def push(self, text: str, token_number: int, name: str = "") -> str:
        """Add the text of one more token; returns the text that is now certain to be shown.

        The longest suffix of the text that may begin a stop string is held back; it is shorter than
        the longest stop string. After a stop there is no more text.

        Args:
            name: name of a special token, which follows the text and is not shown.
        """
        if self.stopped_at is not None:
            return ""
        if not self._patterns:
            return text
        hidden: list[str | None] = ["", *[None] * (len(name) - 1)] if name else []
        read = [*self._held, *text, *hidden]
        for end, char in enumerate(text + name, start=len(self._held) + 1):
            # Every pattern takes every character, also after one has matched.
            ended = [pattern.text for pattern in self._patterns if pattern.advance(char)]
            if ended and token_number >= self._min_tokens and read[end : end + 1] != [None]:
                ended = [stop for stop in ended if read[end - len(stop)] is not None]
                if ended:
                    self.stopped_at, self.stopped_by = token_number, max(ended, key=len)
                    self._held = []
                    return _shown(read[: end - len(self.stopped_by)])
        cut = len(read) - max(pattern.matched for pattern in self._patterns)
        self._held = read[cut:]
        return _shown(read[:cut])

    def flush(self) -> str:
        """Return the text that was held back, at the end of the output."""
        held, self._held = _shown(self._held), []
        return held


def _shown(read: Iterable[str | None]) -> str:
    return "".join(filter(None, read))
