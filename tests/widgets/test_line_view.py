from __future__ import annotations

from textual.geometry import Region
from textual.screen import ModalScreen, Screen

from tests.widgets.hosting import hosted, resize, rows, screen, settle
from widgets.chat_number import ChatNumber
from widgets.line import Line
from widgets.line_view import LineView


class Probe(LineView):
    """Draws words, and remembers how often it drew and what it asked to be repainted."""

    def __init__(self) -> None:
        super().__init__()
        self.words = [["one", "two"], ["three", "four"]]
        self.drawn = 0
        self.repainted: list[tuple[Region, ...]] = []

    def draw(self, width: int, height: int) -> list[Line]:
        self.drawn += 1
        lines = []
        for row in self.words:
            line = self.line(width)
            for place, word in enumerate(row):
                line.add(word, self.palette.owner(ChatNumber(place + 1)))
            lines.append(line)
        return lines

    def refresh(self, *regions: Region, **how: bool) -> Probe:
        if hasattr(self, "repainted"):
            self.repainted.append(regions)
        return super().refresh(*regions, **how)


async def test_only_the_cells_that_changed_are_repainted() -> None:
    probe = Probe()
    async with hosted(probe, 20, 4):
        probe.repainted.clear()
        probe.words = [["one", "two"], ["three", "five"]]
        probe.redraw()
        assert probe.repainted == [(Region(5, 1, 4, 1),)]
        assert rows(probe) == ["onetwo", "threefive", "", ""]


async def test_a_longer_word_repaints_what_it_moves() -> None:
    probe = Probe()
    async with hosted(probe, 20, 4):
        probe.repainted.clear()
        probe.words = [["one", "twelve"], ["three", "four"]]
        probe.redraw()
        assert probe.repainted == [(Region(3, 0, 17, 1),)]


async def test_nothing_new_repaints_nothing() -> None:
    probe = Probe()
    async with hosted(probe, 20, 4):
        probe.repainted.clear()
        probe.redraw()
        assert probe.repainted == []


async def test_lines_that_come_and_go_are_repainted() -> None:
    probe = Probe()
    async with hosted(probe, 20, 4):
        probe.words = [["one", "two"], [], ["new"]]
        probe.redraw()
        assert rows(probe) == ["onetwo", "", "new", ""]


async def test_a_hidden_view_draws_nothing_until_it_is_shown() -> None:
    probe = Probe()
    async with hosted(probe, 20, 4) as (_, pilot):
        probe.display = False
        await pilot.pause()
        drawn = probe.drawn
        probe.words = [["late"]]
        probe.redraw()
        probe.redraw()
        assert probe.drawn == drawn
        probe.display = True
        await pilot.pause()
        assert screen(probe.app)[0].rstrip() == "late"


async def test_a_view_on_a_covered_screen_draws_nothing() -> None:
    probe = Probe()
    async with hosted(probe, 20, 4) as (app, _):
        await app.push_screen(Screen())
        drawn = probe.drawn
        probe.words = [["late"]]
        probe.redraw()
        assert probe.drawn == drawn
        await app.pop_screen()
        probe.redraw()
        assert rows(probe)[0] == "late"


async def test_a_view_follows_its_size() -> None:
    probe = Probe()
    async with hosted(probe, 20, 4) as (app, _):
        await resize(app, probe, 4, 1)
        assert rows(probe) == ["onet"]
        await resize(app, probe, 30, 2)
        assert rows(probe) == ["onetwo", "threefour"]


async def test_a_view_follows_the_theme() -> None:
    probe = Probe()
    async with hosted(probe, 20, 4) as (app, _):
        before = probe.palette
        app.theme = "textual-light"
        await settle(app)
        assert probe.palette != before
        assert next(iter(probe.render_line(0))).style == probe.palette.owner(ChatNumber(1))


async def test_a_view_below_a_dialog_goes_on() -> None:
    probe = Probe()
    async with hosted(probe, 20, 4) as (app, _):
        await app.push_screen(ModalScreen())
        drawn = probe.drawn
        probe.words = [["new"]]
        probe.redraw()
        assert probe.drawn == drawn + 1
