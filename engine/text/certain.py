"""CertainText: what of a reply's text is part of no tool call, whatever comes behind it."""

from __future__ import annotations

from collections.abc import Sequence

from engine.text.forms import begins_call
from engine.text.stops import Pattern


class CertainText:
    """Reads a reply token by token, up to where a tool call may begin.

    A call begins with an opening, and white space may stand before it. So what is certain ends
    before the first opening, before what may become one, and before white space at the end. What
    a reply thinks is no place for calls. Nothing is certain as long as the content may be a call
    from its beginning, without an opening (`begins_call`).

    As in `Parts`, two things wait for each other: where an opening stands is found in the text as
    it is detokenized, special tokens among it by their names (`take`); what of it is content, and
    shown at all, is known later (`give`).

    Args:
        openings: texts with which a call may begin, none of them empty.
        names: of the functions that may be called.

    Attributes:
        length: characters of content that are certain; it never becomes less.
    """

    def __init__(self, openings: Sequence[str], names: Sequence[str]) -> None:
        self._names = names
        self._may_begin = True  # with a call that has no opening
        self._firsts = frozenset(opening[0] for opening in openings)
        self._patterns = [Pattern(opening) for opening in openings]
        # What may become an opening: its characters, or "" in place of those of a name.
        self._held: list[str] = []
        self._has_opened = False
        self._num_read = 0  # characters of the text before all that may be an opening
        self._num_blank = 0  # how many at their end are white space
        self._content: list[str] = []
        self._num_content = 0
        self.length = 0

    @property
    def text(self) -> str:
        """The content that is certain."""
        return "".join(self._content)[: self.length]

    def take(self, text: str, name: str, *, thinks: bool) -> None:
        """Read the next token.

        Args:
            text: that is certain with it.
            name: of a special token, which has no text; "" of any other.
            thinks: whether all of the text is thinking.
        """
        if self._has_opened:
            return
        if thinks:
            self._release()
            self._count(text)
            return
        self._read(text, is_name=False)
        self._read(name, is_name=True)

    def give(self, content: str, num_given: int) -> None:
        """Take in what is given out next.

        Args:
            num_given: how many characters of the text are given out so far, of whatever part.
        """
        self._content.append(content)
        self._num_content += len(content)
        if self._may_begin:
            begins = begins_call("".join(self._content), self._names)
            self._may_begin = begins is not False
            if self._may_begin:
                return
        # Each character behind those that are certain may be content, and no more than one of it.
        behind = max(0, num_given - self._num_read + self._num_blank)
        self.length = max(self.length, self._num_content - behind)

    def _read(self, text: str, *, is_name: bool) -> None:
        if self._has_opened:
            return
        if not self._held and self._firsts.isdisjoint(text):
            self._count("" if is_name else text)  # the usual case
            return
        for char in text:
            self._held.append("" if is_name else char)
            longest = self._advance(char)
            self._count("".join(self._held[: len(self._held) - longest]))
            self._held = self._held[len(self._held) - longest :]
            if self._has_opened:
                break

    def _advance(self, char: str) -> int:
        """The length of the longest opening, whole or begun, that ends with this character."""
        longest = 0
        for pattern in self._patterns:
            ends = pattern.advance(char)
            self._has_opened |= ends
            longest = max(longest, len(pattern.text) if ends else pattern.matched)
        return longest

    def _release(self) -> None:
        """What is held becomes no opening."""
        self._count("".join(self._held))
        self._held = []
        for pattern in self._patterns:
            pattern.matched = 0

    def _count(self, text: str) -> None:
        self._num_read += len(text)
        bare = len(text.rstrip())
        self._num_blank = len(text) - bare if bare else self._num_blank + len(text)


def behind_skipped(skipped: str, content: str) -> str:
    """What a reply says beside its calls, behind what it began with."""
    bare = skipped.lstrip()
    if content.startswith(bare):
        return content[len(bare) :]
    return "" if bare.startswith(content) else content


def beside_calls(certain: str, content: str) -> str:
    """What a reply says beside its calls, given what was certain of it before they were read, which
    may have been told and so is where it begins.

    Where a response template leaves that out, or has it otherwise, nothing else is told.
    """
    if content.startswith(certain):
        return content
    bare = certain.lstrip()  # Most templates leave white space out.
    return certain + content[len(bare) :] if bare and content.startswith(bare) else certain
