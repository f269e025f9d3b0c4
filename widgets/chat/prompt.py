"""Prompt: the input for a message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Label

from widgets.chat.chips import Chips
from widgets.chat.completions import Completion, Completions
from widgets.chat.prompt_head import PromptHead
from widgets.figures import count
from widgets.glyphs import UNICODE, Glyphs
from widgets.harmless import printable
from widgets.line_input import LinesInput, run_bound

MAX_HEIGHT = 8
# Limits above which pasted text is attached instead of inserted.
PASTED_CHARACTERS = 2000
PASTED_LINES = 40
_CHOOSING = ("up", "down", "tab", "escape")


class PromptArea(LinesInput):
    """The text area. Ctrl+J begins a new line; the screen binds Enter.

    Attributes:
        sent: the history for the Up key, oldest first.
        offers: returns the completions of a text, given also the cursor's line up to the cursor,
            which is empty while text is selected.
        attach: attaches the file at a path; False if that was refused, with a message to the user.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        # Only some terminals distinguish Alt+Enter and Shift+Enter from Enter.
        Binding(
            "ctrl+j,alt+enter,shift+enter", "newline", "Newline", show=False, id="prompt.newline"
        ),
        # Textual's own ^z suspends a program everywhere else.
        Binding("ctrl+underscore", "undo", "Undo typing", show=False, id="prompt.undo"),
    ]

    GLOSS: ClassVar[dict[str, str]] = {
        "/": "a command or a saved prompt: a list shows, Tab completes, Enter runs it",
        "@": "a file, by its path: a list shows, Tab or Enter attaches it",
        "^w": "deletes a word; in an empty prompt it closes the chat",
        "a long paste": "is attached; Backspace in an empty prompt takes it away",
    }

    class LargePaste(Message):
        """A pasted text is too long for the prompt."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class DropWanted(Message):
        """Backspace was pressed in an empty prompt.

        Attributes:
            place: -1, the last attachment.
        """

        place = -1

    def __init__(self, completions: Completions) -> None:
        super().__init__(
            soft_wrap=True, tab_behavior="focus", highlight_cursor_line=False, compact=True
        )
        # A blinking cursor would repaint an idle screen twice a second.
        self.cursor_blink = False
        self._completions = completions
        self._offered_for = ("", "")
        self._closed_for: str | None = None  # the text whose list was closed by Escape
        self.offers: Callable[[str, str], Sequence[Completion]] = lambda _text, _before: ()
        self.attach: Callable[[str], bool] = lambda _: False
        self.sent: Sequence[str] = ()
        self._recalled: int | None = None
        self._draft = ""

    def load_text(self, text: str) -> None:
        super().load_text(text)
        self._recalled = None

    def replace_text(self, text: str) -> None:
        """Replace the text, with the cursor at its end; undo brings the old one back."""
        self._recalled = None
        edit = self.replace(text, (0, 0), self.document.end, maintain_selection_offset=False)
        self.move_cursor(edit.end_location)

    async def on_key(self, event: events.Key) -> None:
        if event.key in _CHOOSING and self.offer() is not None:
            event.stop()
            event.prevent_default()
            self._choose(event.key)
            return
        await run_bound(self, event)

    def _choose(self, key: str) -> None:
        """Handle a key while completions are offered."""
        if key == "tab":
            self.complete()
        elif key == "escape":
            self._closed_for = self.text
            self._completions.show(())
        else:
            self._completions.move(1 if key == "down" else -1)

    def offer(self) -> Completion | None:
        """The completion under the cursor; None if the text has none. If keys have come faster than
        the list of completions, it is updated first."""
        row, column = self.cursor_location
        before = self.document[row][:column] if self.selection.is_empty else ""
        state = self.text, before
        if state != self._offered_for:
            self._offered_for = state
            is_closed = self._closed_for == self.text
            self._closed_for = self._closed_for if is_closed else None
            self._completions.show(() if is_closed else self.offers(*state))
        return self._completions.current

    def complete(self) -> None:
        """Accept the completion under the cursor. If it is a file that cannot be attached, the text
        stays."""
        completion = self.offer()
        self._completions.show(())
        if completion is None or (completion.attaches and not self.attach(completion.attaches)):
            return
        if completion.start is None:
            self.load_text(completion.text)
            self.move_cursor(self.document.end)
            return
        end = self.cursor_location
        start = (end[0], completion.start)
        edit = self.replace(completion.text, start, end, maintain_selection_offset=False)
        self.move_cursor(edit.end_location)

    def action_newline(self) -> None:
        start, end = self.selection
        self.move_cursor(
            self.replace("\n", start, end, maintain_selection_offset=False).end_location
        )

    def action_cursor_up(self, select: bool = False) -> None:
        """Move up a line; from the first line, back in the history."""
        at_top = self.wrapped_document.location_to_offset(self.cursor_location).y == 0
        if at_top and not select and self.sent:
            self._recall(len(self.sent) if self._recalled is None else self._recalled, -1)
        else:
            super().action_cursor_up(select)

    def action_cursor_down(self, select: bool = False) -> None:
        """Move down a line; from the last line, forward in the history, up to the draft."""
        bottom = self.wrapped_document.height - 1
        at_bottom = self.wrapped_document.location_to_offset(self.cursor_location).y == bottom
        if at_bottom and not select and self._recalled is not None:
            self._recall(self._recalled, 1)
        else:
            super().action_cursor_down(select)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        # In an empty prompt, Ctrl+W has no word to delete and closes the session instead.
        if action == "delete_word_left" and not self.text:
            return False
        return super().check_action(action, parameters)

    def on_paste(self, event: events.Paste) -> None:
        event.prevent_default()
        event.stop()
        text = printable(event.text)
        if len(text) > PASTED_CHARACTERS or text.count("\n") > PASTED_LINES:
            self.post_message(self.LargePaste(text))
            return
        start, end = self.selection
        edit = self.replace(text, start, end, maintain_selection_offset=False)
        self.move_cursor(edit.end_location)

    def action_delete_left(self) -> None:
        """Delete the character before the cursor; in an empty prompt, the last attachment."""
        if self.text:
            super().action_delete_left()
        else:
            self.post_message(self.DropWanted())

    def _recall(self, position: int, step: int) -> None:
        """Show the entry of the history that is `step` places from `position`. The draft follows
        the last one."""
        wanted = position + step
        if wanted < 0:
            return
        if self._recalled is None:
            self._draft = self.text
        is_draft = wanted >= len(self.sent)
        self.load_text(self._draft if is_draft else self.sent[wanted])
        self._recalled = None if is_draft else wanted
        self.move_cursor(self.document.end)


class Prompt(Widget, can_focus=False):
    """The text area with its mark. The rule above shows the chat's settings, and how much of the
    context is used."""

    DEFAULT_CSS = f"""
    Prompt {{
        layout: vertical;
        height: auto;
        & > Horizontal {{ height: auto; }}
        & Label {{ width: 3; padding: 0 1; color: $text-muted; }}
        & PromptArea {{
            width: 1fr;
            height: auto;
            max-height: {MAX_HEIGHT};
            border: none;
            padding: 0;
            background: transparent;
            scrollbar-size-vertical: 1;
        }}
        &:focus-within {{
            & PromptHead {{ color: $text-accent; }}
            & Label {{ color: $text-accent; text-style: bold; }}
        }}
    }}
    """

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._glyphs = glyphs
        self._hint = self._refusal = self._new = self._settings = ""
        self._is_full = False
        self.head = PromptHead(glyphs)
        self.chips = Chips(glyphs)
        self.completions = Completions(glyphs)
        self.area = PromptArea(self.completions)

    def compose(self) -> ComposeResult:
        yield self.completions
        yield self.head
        yield self.chips
        with Horizontal():
            yield Label("❯" if self._glyphs.unicode else ">")
            yield self.area

    @property
    def text(self) -> str:
        return self.area.text

    def hint(self, send: str, newline: str, new: str) -> None:
        """Set the keys that an empty prompt names, and the key of a new chat, which it names once
        this one is full."""
        self._new = new
        history = "↑" if self._glyphs.unicode else "up"
        keys = f"({send} send · {newline} newline · {history} history)"
        self._hint = self._glyphs.fit(f"Ask…  {keys}")
        self._place()

    def refuse(self, refusal: str) -> None:
        """Set the reason why nothing can be sent, which an empty prompt shows. An empty `refusal`
        means that sending is possible."""
        self._refusal = self._glyphs.fit(refusal)
        self._place()

    def load(self, draft: str, history: Sequence[str]) -> None:
        """Switch to another conversation, with its draft and its sent messages, oldest first."""
        self.area.load_text(draft)
        self.area.move_cursor(self.area.document.end)
        self.area.sent = history

    def show_settings(self, settings: str) -> None:
        """Show the chat's settings."""
        self._settings = settings

    def show_attachments(self, labels: Sequence[str]) -> None:
        """Show the message's attachments."""
        self.chips.show(labels)

    def show_context(self, used: int, limit: int | None, ahead: str = "", needed: int = 0) -> None:
        """Show the used and the total tokens of the context.

        Args:
            ahead: the tokens of the draft, if they are to be shown.
            needed: tokens of both.
        """
        if not limit:
            title = f"{ahead} tokens" if ahead else ""
        elif ahead:
            title = f"ctx {count(used)} + {ahead} of {count(limit)}"
        else:
            title = f"ctx {count(used)}/{count(limit)}"
        self._is_full = bool(limit and used >= limit)
        self._place()
        if self._is_full:
            title += " · full"
        elif limit and needed >= limit:
            title += " · too long"
        self.head.show(self._settings, title, too_long=bool(limit and needed >= limit))

    def _place(self) -> None:
        """Choose the placeholder of the empty prompt."""
        advice = self._glyphs.fit(f"The context is full: a new chat ({self._new}) begins afresh.")
        self.area.placeholder = self._refusal or (advice if self._is_full else self._hint)
