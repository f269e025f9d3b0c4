"""ChatRow: a row of the table: a chat, or a request without a chat."""

from __future__ import annotations

from dataclasses import dataclass

from engine.api.snapshot import RequestView
from engine.api.waiting import in_words
from widgets.chat_number import ChatName
from widgets.figures import count
from widgets.glyphs import Mark, state_mark

YOU = "you"


@dataclass(frozen=True, slots=True)
class ChatRow:
    """A chat with its newest request.

    Attributes:
        key: identifies the row while its requests come and go.
        source: the sender: `YOU`, or the front end of others.
        view: its newest request; None if the engine knows none.
        failure: why its last turn failed, if the engine does not know it (any more); empty if not
            known, None if it did not fail.
    """

    key: str
    name: ChatName
    source: str
    view: RequestView | None = None
    failure: str | None = None

    def mark(self, paused: bool) -> Mark:
        """Its state; `paused` says whether running requests stand still."""
        if self.view is None:
            return Mark.IDLE if self.failure is None else Mark.FAILED
        return state_mark(self.view, paused)

    @property
    def note(self) -> str:
        """Why its request waits or how it failed; else empty."""
        return (in_words(self.view.wait) or self.view.error) if self.view else self.failure or ""

    @property
    def in_full(self) -> str:
        """The row with its request's tokens and blocks, which columns may truncate or leave out."""
        view, name = self.view, f"{self.name.number} {self.name.title}"
        if view is None:
            return f"{name} · {self.note or 'no recent request'}"
        parts = [
            name,
            f"priority {count(view.priority)}" if view.priority else "",
            f"prompt {count(view.prompt_tokens)}, {count(view.cached_tokens)} cached",
            f"output {count(view.output_tokens)}/{count(view.max_output_tokens)}",
            _blocks(view),
            f"preempted {view.preemptions}×" if view.preemptions else "",
        ]
        return " · ".join(part for part in parts if part)

    def matches(self, words: list[str], mark: Mark) -> bool:
        """Whether each word occurs in the row's text. A word that begins with # is its number.

        Args:
            words: in lower case.
            mark: its state.
        """
        user = self.view.origin.user if self.view and self.source != YOU else ""
        text = " ".join((self.name.title, self.source, user, mark)).casefold()
        number = f"#{self.name.number}".casefold()
        return all(word == number if word.startswith("#") else word in text for word in words)


def _blocks(view: RequestView) -> str:
    """How many blocks a request holds, if any, and where, or how many are shared or reserved."""
    if view.host_blocks:
        return f"{count(view.host_blocks)} blk swapped"
    if not view.blocks:
        return ""
    parts = [f"{count(view.blocks)} blk"]
    parts += [f"{count(view.shared_blocks)} shared"] if view.shared_blocks else []
    parts += [f"{count(view.reserved_blocks)} reserved"] if view.reserved_blocks else []
    return ", ".join(parts)
