"""MessageView: a scrolled list of messages, one widget however many they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from re import Pattern

from textual import events
from textual.content import Content
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style

from widgets.chat.entry import Entry
from widgets.chat.inked import Inked
from widgets.chat.passage import INDENT, pattern
from widgets.chat.passages import Passages
from widgets.chat.typeset import Row, Typesetter, wrap
from widgets.figures import counted
from widgets.glyphs import UNICODE, Glyphs

MAX_TEXT_WIDTH = 100


class MessageView(Inked):
    """Shows messages, following the newest unless scrolled up. `Transcript` handles the keys, and
    picks the current message."""

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._glyphs = glyphs
        self._chat = ""
        self._entries: tuple[Entry, ...] = ()
        self._greeting = self._greeted = Content()
        self._passages = Passages()
        self._set_width = 0
        self._following = True
        self._seen = (0, 0)  # of the lowest row that was in view: its message, its index there
        self._current = ""
        self._words: Pattern[str] | None = None
        self._copy_key = ""
        self._awaited = ""  # the message to scroll to once the text is typeset

    @property
    def current(self) -> str:
        """The key of the current message; empty if there is none."""
        return self._current

    @property
    def num_new_rows(self) -> int:
        """Rows below the view that were added since it was scrolled up."""
        index, rows = self._seen
        if self._following or index >= len(self._entries):
            return 0
        start, height = self._passages.place(index)
        return self._passages.height - start - min(rows, height)

    @property
    def text(self) -> str:
        """The typeset rows, as drawn, also outside of the view."""
        return self._passages.text

    def show(self, chat: str, entries: Sequence[Entry], greeting: str = "") -> None:
        """Show the current state of a chat; only differences are typeset and painted, and nothing
        while the view is not on the screen.

        Args:
            chat: another name is another chat, which is shown from its end.
            greeting: shown while there are no entries.
        """
        self._greeting = Content(greeting)
        self._entries = tuple(entries)
        if chat != self._chat:
            self._chat = chat
            self.rest()
            self._following = True
            self._set_all()
        elif self.is_on_screen:
            self._catch_up()

    def on_show(self) -> None:
        self._catch_up()

    def _catch_up(self) -> None:
        """Typeset what has changed since it was last typeset."""
        before, is_greeted = self._passages.entries, self._greeting == self._greeted
        if not self._set_width or (before is self._entries and is_greeted):
            return
        self._greeted = self._greeting
        if not before:
            self._set_all()
            return
        for index in self._passages.change(self._entries):
            start, stayed = self._passages.update(index)
            top = self.scroll_offset.y
            self.refresh_lines(start, 2)
            self.refresh_lines(start + 1 + stayed, max(0, top + self.size.height - start))
        if len(before) != len(self._entries) or before[-1].key != self._entries[-1].key:
            if self._current and self._passages.find(self._current) is None:
                self._mark("")
            self.refresh()
        self._arrange()

    def go_to(self, key: str, words: Iterable[str] = ()) -> bool:
        """Make a message the current one and scroll it into view.

        Args:
            words: highlighted in all messages; the first of them in the message is scrolled into
                view. `rest` removes the highlights.

        Returns:
            whether there is such a message.
        """
        if all(entry.key != key for entry in self._entries):
            return False
        self._words = pattern(words)
        self._passages.redraw()
        self._mark(key)
        self._awaited = key
        self._arrive()
        return True

    def hint(self, copy: str) -> None:
        """Set the shown name of the key that copies code."""
        self._copy_key = copy

    def fold(self, key: str) -> None:
        """Fold or unfold the parts of a message. The rows above it stay in place."""
        top = self.scroll_offset.y
        index = self._passages.index_at(top)
        offset = top - self._passages.place(index)[0]
        self._passages.fold(key)
        self._scroll_to_entry(index, offset)
        self.refresh()

    def show_thinking(self, shown: bool) -> None:
        """Show or fold the thinking of every message."""
        self._passages.shows_thinking = shown
        if self._set_width:
            self._set_all()

    def rest(self) -> None:
        """Clear the current message and the highlighted words."""
        self._mark("")
        if self._words is not None:
            self._words = None
            self._passages.redraw()
            self.refresh()

    def follow(self) -> None:
        """Scroll to the end and stay there."""
        self._following = True
        self._arrange()
        self.refresh()

    # Scrolling is not animated: text that arrives before the first frame would pull the view back.

    def action_scroll_up(self) -> None:
        self.scroll_up(animate=False)

    def action_scroll_down(self) -> None:
        self.scroll_down(animate=False)

    def action_page_up(self) -> None:
        self.scroll_page_up(animate=False)

    def action_page_down(self) -> None:
        self.scroll_page_down(animate=False)

    # Painting.

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        row = self.scroll_offset.y + y
        base = self.visual_style.rich_style
        strip = self._strip(row).crop_extend(0, width, base).apply_offsets(0, row)
        if y == self.scrollable_content_region.height - 1 and (new := self.num_new_rows):
            arrow = self._glyphs.down if not self._glyphs.unicode else "↓"
            text = self._glyphs.fit(f" {counted(new, 'new line')} · End to follow ")
            badge = self._to_strip(Content.styled(f" {arrow}{text}", ".badge"))
            if badge.cell_length <= width:
                strip = Strip.join([strip.crop(0, width - badge.cell_length), badge])
        return strip

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        return self._passages.selected(selection), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        self.refresh()
        # The screen shows the key that copies the selection while there is one.
        self.screen.refresh_bindings()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._passages.redraw()

    def on_resize(self, event: events.Resize) -> None:
        if self._text_width != self._set_width:
            self._set_all()
        else:
            self._arrange()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._following = new_value >= self.max_scroll_y
        if self._set_width and self._entries:
            at_end = self._following
            self._scroll_to_row(self._passages.typeset(self.scroll_offset.y, self._view_height))
            self._following = self._following or at_end

    def _strip(self, number: int) -> Strip:
        """Draw row `number` of all rows."""
        passage, index = self._passages.locate(number)
        if passage is None:
            if not self._entries and 0 < number <= len(rows := self._greeting_rows):
                return self._to_strip(rows[number - 1].text.pad_left(INDENT).stylize(".muted"))
            return Strip([])
        selection = self.text_selection
        span = selection.get_span(number) if selection else None
        strip = passage.strips.get(index)
        if strip is None or span is not None:
            edge = self._glyphs.edge if passage.entry.key == self._current else " "
            cursor = "▍" if self._glyphs.unicode else "_"
            content = passage.line(index, cursor, edge, self._words)
            content = content.truncate(INDENT + self._set_width + 1, ellipsis=True)
            if span is not None:
                start, end = span
                selected = Style.from_styles(self.screen.get_component_styles("screen--selection"))
                return self._to_strip(content.stylize(selected, start, end if end >= 0 else None))
            strip = passage.strips[index] = self._to_strip(content)
        return strip

    # Typesetting.

    @property
    def _text_width(self) -> int:
        return min(self.scrollable_content_region.width - INDENT - 1, MAX_TEXT_WIDTH)

    @property
    def _greeting_rows(self) -> list[Row]:
        return list(wrap(self._greeting, self._text_width))

    @property
    def _view_height(self) -> int:
        return self.scrollable_content_region.height

    @property
    def _seen_messages(self) -> range:
        """The indices of the messages that are at least partly in view."""
        top = self.scroll_offset.y
        bottom = max(top, top + self._view_height - 1)
        return range(self._passages.index_at(top), self._passages.index_at(bottom) + 1)

    def _set_all(self) -> None:
        """Typeset the messages again, at the current width."""
        self._set_width = self._text_width
        if self._set_width <= 0:
            self._set_width = 0
            return
        top = self._passages.index_at(self.scroll_offset.y)
        typesetter = Typesetter(self._glyphs, copy_key=self._copy_key)
        self._passages.set_entries(self._entries, typesetter, self._set_width)
        if self._following or not self._entries:
            self._arrange()
        else:
            self._scroll_to_entry(min(top, len(self._entries) - 1))
            self._seen = (len(self._entries), 0)
        self._arrive()
        self.refresh()

    def _arrange(self) -> None:
        """Update positions to the rows, at the end or at the reader's position."""
        if not self._entries or not self._set_width:
            self._set_rows(1 + len(self._greeting_rows))
        elif self._following and not self.is_vertical_scrollbar_grabbed:
            self._scroll_to_row(self._passages.typeset_end(self._view_height))
            self._following = True
            self._record_seen()
        else:
            top = self.scroll_offset.y
            index = self._passages.index_at(top)
            self._scroll_to_entry(index, top - self._passages.place(index)[0])

    def _scroll_to_entry(self, index: int, offset: int = 0) -> None:
        """Start the view at so many rows below the beginning of a message."""
        self._scroll_to_row(self._passages.typeset_from(index, offset, self._view_height))

    def _scroll_to_row(self, top: int) -> None:
        """Start the view at this row; all that it shows below is typeset."""
        self._set_rows(self._passages.height)
        if top != self.scroll_offset.y:
            self.scroll_to(y=top, animate=False)
        self._record_seen()

    def _record_seen(self) -> None:
        """Record how far down the chat was viewed."""
        # Only typeset messages: a resize may come before the newest entries are typeset.
        last = len(self._passages.entries) - 1
        if self._following and last >= 0:
            self._seen = (last, self._passages.place(last)[1])
        elif last >= 0:
            bottom = self.scroll_offset.y + self._view_height - 1
            index = self._passages.index_at(bottom)
            self._seen = max(self._seen, (index, bottom + 1 - self._passages.place(index)[0]))

    def _mark(self, key: str) -> None:
        """Make a message the current one, or none."""
        if key != self._current:
            for changed in filter(None, (self._current, key)):
                self._passages.redraw(changed)
            self._current = key
            self.refresh()
            # Some keys of the transcript only act on certain messages.
            self.screen.refresh_bindings()

    def _reveal(self, index: int) -> None:
        """Scroll just enough to show a message, or its beginning if it is taller than the view."""
        self._passages.passage(index)
        self._passages.arrange()
        start, height = self._passages.place(index)
        top, room = self.scroll_offset.y, self._view_height
        if start < top or height - 1 > room:
            self._scroll_to_entry(index)
        elif start + height - 1 > top + room:
            self._scroll_to_entry(index, height - 1 - room)

    def _arrive(self) -> None:
        """Scroll to the awaited message, once the text is typeset."""
        index = self._passages.find(self._awaited) if self._awaited else None
        if index is None or not self._set_width:
            return
        self._awaited = ""
        row = self._passages.passage(index).first_row_with(self._words)
        # With the rows before it, if they are few.
        before = row if row < self._view_height // 2 else self._view_height // 3
        self._scroll_to_entry(index, row - before)
