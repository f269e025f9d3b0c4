from __future__ import annotations

import re

import pytest
from rich.cells import cell_len
from textual.events import MouseScrollDown

from tests.widgets.gallery import VIEWS, fill
from tests.widgets.hosting import hosted, press, resize, rows, settle
from widgets.glyphs import ASCII, UNICODE, Glyphs
from widgets.line import Line
from widgets.line_view import LineView
from widgets.panels.knob_panel import KnobPanel
from widgets.panels.kv_map import KvMap
from widgets.panels.panel import Panel
from widgets.panels.scroll_panel import ScrollPanel
from widgets.panels.session_table import SessionTable

SIZES = ((160, 48), (80, 24), (40, 10), (30, 4), (17, 5), (16, 3), (10, 2), (3, 1), (1, 1))


class Box(Panel, can_focus=True):
    words = "text"
    note = ""

    def title(self) -> str:
        return "Name · figures"

    def footer(self) -> str:
        return self.note

    def body(self, width: int, height: int) -> list[Line]:
        return [self.line(width).add(self.words, self.palette.text) for _ in range(30)]


class Column(ScrollPanel, can_focus=True):
    count = 12

    @property
    def num_rows(self) -> int:
        return self.count

    def title(self) -> str:
        return "Rows"

    def body(self, width: int, height: int) -> list[Line]:
        numbers = range(self.count)[self.first : self.first + height]
        return [self.line(width).add(str(n), self.palette.text) for n in numbers]


async def test_a_frame_with_title_and_footer() -> None:
    box = Box()
    async with hosted(box, 24, 4):
        assert rows(box) == [
            "╭─ Name · figures ─────╮",
            "│ text                 │",
            "│ text                 │",
            "╰──────────────────────╯",
        ]
        box.note = "a footer that is too long"
        box.redraw()
        assert rows(box)[-1] == "╰─ a footer that is t… ╯"


async def test_focus_is_seen_without_colour() -> None:
    box = Box()
    async with hosted(box, 24, 4, focus=True) as (app, _):
        assert rows(box)[0] == "┏━ Name · figures ━━━━━┓"
        app.set_focus(None)
        await settle(app)
        assert rows(box)[0] == "╭─ Name · figures ─────╮"


async def test_without_room_for_a_frame_the_title_is_the_first_line() -> None:
    box = Box()
    async with hosted(box, 12, 3):
        assert rows(box) == ["Name", "text", "text"]


async def test_the_right_edge_shows_what_part_is_in_view() -> None:
    column = Column()
    async with hosted(column, 20, 6) as (app, _):
        assert [row[-1] for row in rows(column)] == list("╮█│││╯")
        column.post_message(MouseScrollDown(column, 5, 2, 0, 1, 0, False, False, False))
        await settle(app)
        assert [row[2] for row in rows(column)[1:-1]] == list("3456")
        column.scroll(99)
        column.redraw()
        assert rows(column)[1:-1] == [
            "│ 8                │",
            "│ 9                │",
            "│ 10               │",
            "│ 11               █",
        ]


async def test_revealing_a_row_scrolls_as_little_as_needed() -> None:
    column = Column()
    async with hosted(column, 20, 6):
        for row, first in ((3, 0), (4, 1), (11, 8), (9, 8), (7, 7), (0, 0)):
            column.reveal(row)
            assert column.first == first


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.__name__)
async def test_every_view_fits_every_size(view: type[LineView], glyphs: Glyphs) -> None:
    widget = view(glyphs)
    async with hosted(widget, 80, 24, focus=widget.can_focus) as (app, _):
        fill(widget)
        for width, height in SIZES:
            await resize(app, widget, width, height)
            lines = [widget.render_line(y).text for y in range(widget.size.height)]
            assert [cell_len(line) for line in lines] == [width] * height
            if glyphs is ASCII:
                assert all(line.isascii() for line in lines)
            assert lines[0].strip() or width < 10
        assert app.screen.focused is (widget if widget.can_focus else None)


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.__name__)
async def test_every_view_says_something_before_it_has_data(view: type[LineView]) -> None:
    widget = view(UNICODE)
    async with hosted(widget, 80, 10, focus=widget.can_focus) as (app, pilot):
        assert re.search(
            "[a-z]{2,}", " ".join(rows(widget)[1:] if widget.can_focus else rows(widget))
        )
        for key in ("up", "down", "left", "right", "enter", "space", "s", "u", "l", "m", "home"):
            await press(app, key)
        await pilot.click(type(widget), offset=(3, 1) if widget.size.height > 1 else (0, 0))


@pytest.mark.parametrize("kind", [KnobPanel, SessionTable, KvMap])
async def test_what_is_shown_again_is_not_drawn_again(
    kind: type[LineView], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Panels were drawn twice a second though the engine stood still."""
    view = kind()
    async with hosted(view, 80, 12):
        fill(view)
        drawn: list[None] = []
        monkeypatch.setattr(view, "redraw", lambda: drawn.append(None))
        fill(view)
        assert not drawn
