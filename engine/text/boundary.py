"""ToolCallBoundary: the part of a reply's text that no tool call can include, whatever follows."""

from __future__ import annotations

from collections.abc import Sequence

from engine.text.forms import begins_call
from engine.text.stops import Pattern


class ToolCallBoundary:
    """Reads a reply token by token, up to where a tool call may begin.

    A call begins with an opening, which white space may precede. So the certain text ends before
    the first opening, before text that may become one, and before trailing white space. Calls do
    not occur in thinking. Nothing is certain while the content may itself be a call without an
    opening (`begins_call`).

    As in `Parts`, two inputs are needed. Openings are found in the text as it is detokenized, with
    special tokens by name (`read_token`). Only later is it known which characters are content, and
    whether they are shown (`add_content`).

    Args:
        openings: texts with which a call may begin, none of them empty.
        names: names of the functions that may be called.

    Attributes:
        length: number of certain characters of content; it never decreases.
    """

    def __init__(self, openings: Sequence[str], names: Sequence[str]) -> None:
        self._names = names
        self._may_begin = True  # with a call without an opening
        self._firsts = frozenset(opening[0] for opening in openings)
        self._patterns = [Pattern(opening) for opening in openings]
        # Characters that may become an opening, with "" for those of a name.
        self._held: list[str] = []
        self._has_opened = False
        self._num_read = 0  # characters of the text before those that may be an opening
        self._num_blank = 0  # how many trailing ones are white space
        self._content: list[str] = []
        self._num_content = 0
        self.length = 0

    @property
    def text(self) -> str:
        """The certain content."""
        return "".join(self._content)[: self.length]

    def read_token(self, text: str, name: str, *, thinks: bool) -> None:
        """Read the next token.

        Args:
            text: its certain text.
            name: name of a special token, which has no text; "" for others.
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

    def add_content(self, content: str, num_given: int) -> None:
        """Add the content that is output next.

        Args:
            num_given: how many characters of the text are output so far, of any part.
        """
        self._content.append(content)
        self._num_content += len(content)
        if self._may_begin:
            begins = begins_call("".join(self._content), self._names)
            self._may_begin = begins is not False
            if self._may_begin:
                return
        # Each character after the certain ones gives at most one character of content.
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
        """Length of the longest opening, complete or partial, that ends with this character."""
        longest = 0
        for pattern in self._patterns:
            ends = pattern.advance(char)
            self._has_opened |= ends
            longest = max(longest, len(pattern.text) if ends else pattern.matched)
        return longest

    def _release(self) -> None:
        """The held text does not become an opening."""
        self._count("".join(self._held))
        self._held = []
        for pattern in self._patterns:
            pattern.matched = 0

    def _count(self, text: str) -> None:
        self._num_read += len(text)
        bare = len(text.rstrip())
        self._num_blank = len(text) - bare if bare else self._num_blank + len(text)


def behind_skipped(skipped: str, content: str) -> str:
    """The content beside a reply's calls, without the text already skipped."""
    bare = skipped.lstrip()
    if content.startswith(bare):
        return content[len(bare) :]
    return "" if bare.startswith(content) else content


def beside_calls(certain: str, content: str) -> str:
    """The content beside a reply's calls. It begins with the text that was certain before they were
    parsed, because that may already have been sent.

    If a response template omits or changes that text, only the certain text is returned.
    """
    if content.startswith(certain):
        return content
    bare = certain.lstrip()  # Most templates omit white space.
    return certain + content[len(bare) :] if bare and content.startswith(bare) else certain
