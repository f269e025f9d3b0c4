"""Inked: a scrolled view whose text is drawn in the styles of a chat."""

from __future__ import annotations

from typing import ClassVar

from rich.segment import Segment
from textual.content import Content
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.style import Style


class Inked(ScrollView, inherit_bindings=False):
    """Resolves names of styles such as `.code` for the theme."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        f"transcript--{name}"
        for name in (
            *("user", "assistant", "failed", "muted", "faint", "mark", "badge", "call"),
            *("h1", "h2", "h3", "em", "strong", "s", "code", "link", "hit"),
            *("comment", "keyword", "string", "number", "name", "builtin", "wrong"),
        )
    }

    DEFAULT_CSS = """
    Inked {
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
        & > .transcript--call { color: $text-secondary; }
        & > .transcript--badge { background: $accent-muted; color: $text-accent; }
        & > .transcript--h1 { color: $text-primary; text-style: bold underline; }
        & > .transcript--h2 { color: $text-primary; text-style: bold; }
        & > .transcript--h3 { text-style: bold; }
        & > .transcript--em { text-style: italic; }
        & > .transcript--strong { text-style: bold; }
        & > .transcript--s { text-style: strike; }
        & > .transcript--code { color: $text-warning; background: $foreground 8%; }
        & > .transcript--link { color: $text-accent; text-style: underline; }
        & > .transcript--hit {
            background: $accent-muted; color: $text-accent; text-style: bold underline;
        }
        & > .transcript--comment { color: $foreground-muted; text-style: italic; }
        & > .transcript--keyword { color: $text-accent; text-style: bold; }
        & > .transcript--string { color: $text-success; }
        & > .transcript--number { color: $text-warning; }
        & > .transcript--name { color: $text-primary; }
        & > .transcript--builtin { color: $text-secondary; }
        & > .transcript--wrong { color: $text-error; text-style: underline; }
        &:ansi > .transcript--comment { color: ansi_default; text-style: dim italic; }
        &:ansi > .transcript--faint { color: ansi_default; text-style: dim; }
        &:ansi > .transcript--muted { color: ansi_default; text-style: dim; }
        &:ansi > .transcript--code { background: ansi_default; }
        &:ansi > .transcript--hit { background: ansi_default; }
        &:ansi > .transcript--badge { background: ansi_default; text-style: reverse; }
    }
    """

    def _set_rows(self, rows: int) -> None:
        """Set the number of rows to scroll. Textual lays out the whole screen for another
        `virtual_size`, which may change the surroundings of a view; for this one, it does not."""
        size = Size(self.scrollable_content_region.width, rows)
        if size != self.virtual_size:
            self.set_reactive(Inked.virtual_size, size)
            self.vertical_scrollbar.window_virtual_size = rows
            self.refresh()

    def _to_strip(self, content: Content) -> Strip:
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
