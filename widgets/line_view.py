"""LineView: a widget that is drawn line by line and repaints only what changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from widgets.glyphs import UNICODE, Glyphs
from widgets.line import Line
from widgets.palette import Palette, least_contrast


class LineView(Widget):
    """Base class of the dashboard's views, on Textual's line API.

    A view stores the data that it shows, and draws them as a list of lines. A new drawing is
    compared with the one on the screen, and only the parts of lines that differ are repainted. A
    view that is not on the screen stores its data and draws nothing.
    """

    GLOSS: ClassVar[Mapping[str, str]] = {}
    """The meanings of words in the view. The help has them, and so has the line that explains a
    word while the view has the focus."""

    ALLOW_SELECT = False

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.glyphs = glyphs
        self._lines: list[list[Segment]] = []
        self._strips: list[Strip] = []
        self._drawn_width = 0
        self._outdated = True
        self._palette: Palette | None = None
        self._shown: tuple[object, ...] = ()

    def draw(self, width: int, height: int) -> list[Line]:
        """The view, as at most `height` lines of at most `width` cells."""
        raise NotImplementedError

    @property
    def palette(self) -> Palette:
        if self._palette is None:
            base = self.rich_style
            # The rest of the style (links, text opacity) does not apply to every cell.
            base = Style(color=base.color, bgcolor=base.bgcolor)
            least = least_contrast(self.app.theme_variables)
            self._palette = Palette.on(base, self.app.native_ansi_color, self.app.no_color, least)
        return self._palette

    def line(self, width: int) -> Line:
        """An empty line of `width` cells to write on."""
        return Line(width, self.glyphs)

    def redraw(self) -> None:
        """Update the screen to the data."""
        self._outdated = True
        if not self._is_seen:
            return
        before, width = self._strips, self._drawn_width
        self._update()
        if len(before) != len(self._strips) or width != self._drawn_width:
            self.refresh()
            return
        changed = [
            _difference(old, new, y)
            for y, (old, new) in enumerate(zip(before, self._strips, strict=True))
            if old is not new
        ]
        if changed:
            self.refresh(*changed)

    def is_other(self, *shown: object) -> bool:
        """Whether these values differ from those of the previous call."""
        before, self._shown = self._shown, shown
        return shown != before

    @property
    def _is_seen(self) -> bool:
        if not self.is_mounted or not self.is_on_screen:
            return False
        # Textual counts the screen below the top one as current, even if that covers it.
        screen = self.screen
        return screen.is_active or (screen.is_current and self.app.screen.is_modal)

    def render_line(self, y: int) -> Strip:
        width, height = self.size
        if self._outdated or width != self._drawn_width or height != len(self._strips):
            self._update()
        return self._strips[y] if y < len(self._strips) else Strip.blank(width)

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._palette = None
        self._outdated = True

    def on_show(self) -> None:
        self.redraw()

    def watch_has_focus(self, _has_focus: bool) -> None:
        super().watch_has_focus(_has_focus)
        self.redraw()

    def _update(self) -> None:
        """Draw, and reuse the strips of unchanged lines."""
        width, height = self.size
        lines = self.draw(width, height)[:height] if width and height else []
        lines += [self.line(width) for _ in range(height - len(lines))]
        drawn = [line.pad(self.palette.text).segments for line in lines]
        kept = self._lines if width == self._drawn_width else []
        self._strips = [
            self._strips[y] if y < len(kept) and kept[y] == segments else Strip(segments, width)
            for y, segments in enumerate(drawn)
        ]
        self._lines = drawn
        self._drawn_width = width
        self._outdated = False


def _difference(old: Strip, new: Strip, y: int) -> Region:
    """The cells of line `y` from the first to the last segment that differ."""
    before, after = list(old), list(new)
    width = new.cell_length
    start = _common_cells(before, after)
    before.reverse()
    after.reverse()
    end = min(_common_cells(before, after), width - start)
    return Region(start, y, width - start - end, 1)


def _common_cells(one: list[Segment], other: list[Segment]) -> int:
    """The width in cells of the common leading segments."""
    cells = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        cells += a.cell_length
    return cells
