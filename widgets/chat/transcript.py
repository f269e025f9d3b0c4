"""Transcript: a conversation as it is read, one widget whatever its length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style

from widgets.chat.passage import INDENT, Entry
from widgets.chat.passages import Passages
from widgets.chat.typeset import Typesetter, last_code_block
from widgets.figures import count
from widgets.glyphs import UNICODE, Glyphs

# Setting 20 messages of 2,000 characters takes 70 ms; older ones are set when one scrolls to them.
PAGE = 20
MAX_TEXT_WIDTH = 100


class Transcript(ScrollView, can_focus=True):
    """Shows the messages of one conversation, following the newest unless scrolled up."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        f"transcript--{name}"
        for name in (
            *("user", "assistant", "failed", "muted", "faint", "mark", "badge"),
            *("h1", "h2", "h3", "em", "strong", "s", "code", "link"),
        )
    }

    DEFAULT_CSS = """
    Transcript {
        height: 1fr;
        overflow-x: hidden;
        overflow-y: scroll;
        scrollbar-size-vertical: 1;
        scrollbar-color: $foreground 25%;
        scrollbar-color-hover: $foreground 50%;
        scrollbar-background: transparent;
        scrollbar-background-hover: transparent;
        scrollbar-background-active: transparent;
        & > .transcript--user { color: $text-success; text-style: bold; }
        & > .transcript--assistant { color: $text-primary; text-style: bold; }
        & > .transcript--failed { color: $text-error; text-style: bold; }
        & > .transcript--muted { color: $foreground-muted; }
        & > .transcript--faint { color: $foreground 35%; }
        & > .transcript--mark { color: $text-accent; }
        & > .transcript--badge { background: $accent-muted; color: $text-accent; }
        & > .transcript--h1 { color: $text-primary; text-style: bold underline; }
        & > .transcript--h2 { color: $text-primary; text-style: bold; }
        & > .transcript--h3 { text-style: bold; }
        & > .transcript--em { text-style: italic; }
        & > .transcript--strong { text-style: bold; }
        & > .transcript--s { text-style: strike; }
        & > .transcript--code { color: $text-warning; background: $foreground 8%; }
        & > .transcript--link { color: $text-accent; text-style: underline; }
        &:ansi > .transcript--faint { color: ansi_default; text-style: dim; }
        &:ansi > .transcript--muted { color: ansi_default; text-style: dim; }
        &:ansi > .transcript--code { background: ansi_default; }
        &:ansi > .transcript--badge { background: ansi_default; text-style: reverse; }
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "copy_code", "Copy code", id="transcript.copy_code"),
        Binding("c", "copy_reply", "Copy reply", id="transcript.copy_reply"),
    ]

    class CopyWanted(Message):
        """The user asks for `text`, a `what`, on the clipboard."""

        def __init__(self, text: str, what: str) -> None:
            super().__init__()
            self.text = text
            self.what = what

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._glyphs = glyphs
        self._conversation = ""
        self._entries: tuple[Entry, ...] = ()
        self._greeting = Content()
        self._first = 0  # of the entries, the first that is set in rows
        self._passages = Passages()
        self._set_width = 0
        self._following = True
        self._seen = 0  # rows that have been on the screen

    @property
    def is_following(self) -> bool:
        """Whether the view stays at the end as text comes."""
        return self._following

    @property
    def num_new_rows(self) -> int:
        """Rows below the view that came since it was scrolled up."""
        return 0 if self._following else max(0, self.virtual_size.height - self._seen)

    @property
    def text(self) -> str:
        """The rows that are set, as they stand on the screen and beyond its edges."""
        return self._passages.text

    def show(self, conversation: str, entries: Sequence[Entry], greeting: str = "") -> None:
        """Show a conversation as it now stands; only what differs is set and painted anew.

        Args:
            conversation: another name is another conversation, and is shown from its end.
            greeting: shown while there is no entry.
        """
        self._greeting = Content(greeting)
        if conversation != self._conversation:
            self._conversation = conversation
            self._entries = tuple(entries)
            self._set_all()
            self.follow()
            return
        before, self._entries = self._entries, tuple(entries)
        if not self._set_width:
            return
        common = 0
        for old, new in zip(before, self._entries, strict=False):
            if old.key != new.key:
                break
            common += 1
        if common < self._first or not before:
            self._set_all()
            return
        for index in range(self._first, common):
            if before[index] is not self._entries[index] and before[index] != self._entries[index]:
                self._update(index - self._first)
        kept = common - self._first
        if kept < len(self._passages) or common < len(self._entries):
            added = self._entries[common:]
            self._passages.set_below(kept, added, self._typesetter(), self._text_width)
            self.refresh()
        self._arrange()

    def follow(self) -> None:
        """Go to the end and stay there."""
        self._following = True
        self._arrange()
        self.refresh()

    # Scrolling is not animated: text that comes before the first frame would pull the view back.

    def action_scroll_up(self) -> None:
        self.scroll_up(animate=False)

    def action_scroll_down(self) -> None:
        self.scroll_down(animate=False)

    def action_page_up(self) -> None:
        self.scroll_page_up(animate=False)

    def action_page_down(self) -> None:
        self.scroll_page_down(animate=False)

    def action_scroll_home(self) -> None:
        self.scroll_home(animate=False)

    def action_scroll_end(self) -> None:
        self.follow()

    def action_copy_code(self) -> None:
        """Ask for the last code block on the clipboard."""
        for entry in reversed(self._entries):
            if entry.role == "assistant" and (code := last_code_block(entry.text)) is not None:
                self.post_message(self.CopyWanted(code, "code block"))
                return
        self.notify("There is no code block in this chat.", severity="warning")

    def action_copy_reply(self) -> None:
        """Ask for the last reply on the clipboard."""
        for entry in reversed(self._entries):
            if entry.role == "assistant" and entry.text:
                self.post_message(self.CopyWanted(entry.text, "reply"))
                return
        self.notify("There is no reply in this chat.", severity="warning")

    # Painting.

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        row = self.scroll_offset.y + y
        base = self.visual_style.rich_style
        strip = self._strip(row).crop_extend(0, width, base).apply_offsets(0, row)
        if y == self.scrollable_content_region.height - 1 and (new := self.num_new_rows):
            arrow = self._glyphs.down if not self._glyphs.unicode else "↓"
            lines = "line" if new == 1 else "lines"
            text = self._glyphs.fit(f" {count(new)} new {lines} · End to follow ")
            badge = self._draw(Content.styled(f" {arrow}{text}", ".badge"))
            if badge.cell_length <= width:
                strip = Strip.join([strip.crop(0, width - badge.cell_length), badge])
        return strip

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        return self._passages.selected(selection, self.virtual_size.height), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        self.refresh()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        if self._set_width:
            self._set_all()

    def on_resize(self, event: events.Resize) -> None:
        if self._text_width != self._set_width:
            self._set_all()
        self._arrange()

    def on_click(self, event: events.Click) -> None:
        if (code := event.style.meta.get("code")) is not None:
            self.post_message(self.CopyWanted(code, "code block"))

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._following = new_value >= self.max_scroll_y
        self._look()
        if new_value <= 0 and new_value < old_value and self._first:
            self._set_older()

    def _strip(self, number: int) -> Strip:
        """Row `number` of all that is set, drawn."""
        passage, index = self._passages.locate(number)
        if passage is None:
            if self._first and number == 0:
                earlier = self._glyphs.fit(f"↑ {count(self._first)} earlier messages")
                return self._draw(Content.styled(earlier, ".muted"))
            if not self._entries and 0 < number <= len(lines := self._greeting.split("\n")):
                return self._draw(lines[number - 1].pad_left(INDENT).stylize(".muted"))
            return Strip([])
        cursor = "▍" if self._glyphs.unicode else "_"
        if (selection := self.text_selection) and (span := selection.get_span(number)):
            content = passage.line(index, cursor)[0]
            start, end = span
            selected = Style.from_styles(self.screen.get_component_styles("screen--selection"))
            return self._draw(content.stylize(selected, start, end if end >= 0 else None))
        if (strip := passage.strips[index]) is None:
            strip = passage.strips[index] = self._draw(passage.line(index, cursor)[0])
        return strip

    def _draw(self, content: Content) -> Strip:
        base = self.visual_style
        return Strip(
            Segment(text, style.rich_style)
            for text, style in content.render(base, end="", parse_style=self._resolve)
        )

    def _resolve(self, style: str | Style) -> Style:
        if isinstance(style, Style):
            return style
        if style.startswith("."):
            return self.get_visual_style(f"transcript--{style[1:]}", partial=True)
        return Style.parse(style)

    # Setting.

    @property
    def _text_width(self) -> int:
        return min(self.scrollable_content_region.width - INDENT - 1, MAX_TEXT_WIDTH)

    def _typesetter(self) -> Typesetter:
        return Typesetter(self._glyphs, ansi=self.app.native_ansi_color)

    def _set_all(self) -> None:
        """Set the last messages anew, at the width that is now."""
        self._set_width = self._text_width
        if self._set_width <= 0:
            self._set_width = 0
            return
        self._first = max(0, len(self._entries) - PAGE)
        entries = self._entries[self._first :]
        self._passages.set_below(0, entries, self._typesetter(), self._set_width)
        self._arrange()
        self.refresh()

    def _set_older(self) -> None:
        """Set the messages before those that are set, leaving the view where it is."""
        before = self.virtual_size.height
        first = max(0, self._first - PAGE)
        older = self._entries[first : self._first]
        self._passages.set_above(older, self._typesetter(), self._set_width)
        self._first = first
        self._arrange()
        self.scroll_to(y=self.scroll_y + self.virtual_size.height - before, animate=False)

    def _update(self, index: int) -> None:
        start, stayed = self._passages.update(index, self._entries[self._first + index])
        self.refresh_lines(start)
        self.refresh_lines(start + 1 + stayed, self.size.height)

    def _arrange(self) -> None:
        """Bring positions up to date with the rows."""
        height = self._passages.arrange(1 if self._first else 0)
        if not self._entries:
            height = 1 + len(self._greeting.split("\n"))
        following = self._following and not self.is_vertical_scrollbar_grabbed
        self.virtual_size = Size(self.scrollable_content_region.width, height)
        if following:
            self.scroll_to(y=self.max_scroll_y, animate=False)
            self._following = True
        self._look()

    def _look(self) -> None:
        bottom = self.scroll_offset.y + self.scrollable_content_region.height
        self._seen = self.virtual_size.height if self._following else max(self._seen, bottom)
