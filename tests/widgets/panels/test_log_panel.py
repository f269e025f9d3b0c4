from __future__ import annotations

from tests.widgets.hosting import hosted, press, resize, rows
from tests.widgets.samples import NOON, log_lines
from widgets.glyphs import ASCII
from widgets.panels.log_line import Level, LogLine
from widgets.panels.log_panel import CAPACITY, LogPanel


def numbered(*numbers: int) -> list[LogLine]:
    return [LogLine(NOON + n, Level.INFO, "test", f"line {n}") for n in numbers]


def texts(panel: LogPanel) -> list[str]:
    """The texts in view, in a panel wide enough to show time, level and source."""
    return [row[20:-2].rstrip() for row in rows(panel)[1:-1] if row[2] != " "]


async def test_time_level_source_text() -> None:
    panel = LogPanel(ASCII)
    async with hosted(panel, 64, 7):
        panel.add(log_lines())
        assert rows(panel)[0] == "+- Log - l level: info ----------------------------------------+"
        assert rows(panel)[1:-1] == [
            "| 22:13:21 W sched  preempt req-6: its blocks go to host       |",
            "|                   memory                                     #",
            "| 22:13:22 E mqtt   bot-3: JSON decode error at column 17      #",
            "| 22:13:23 I knob   max_num_batched_tokens 512>256 by you      #",
            "| 22:13:24 I sched  finish req-7                               #",
        ]


async def test_the_longest_source_stands_apart_from_the_text() -> None:
    panel = LogPanel()
    async with hosted(panel, 64, 4):
        panel.add([LogLine(NOON, Level.INFO, "engine", "self-test")])
        assert " I engine self-test " in rows(panel)[1]


async def test_the_level_hides_what_matters_less() -> None:
    panel = LogPanel()
    async with hosted(panel, 64, 12, focus=True) as (app, _):
        panel.add(log_lines())
        counts = {}
        for _ in Level:
            counts[panel.level] = [row[11] for row in rows(panel)[1:-1] if row[2] == "2"]
            await press(app, "l")
        assert counts == {
            Level.INFO: list("IWEII"),
            Level.WARNING: list("WE"),
            Level.ERROR: list("E"),
            Level.DEBUG: list("IWDEII"),
        }
        assert "l level: info" in rows(panel)[0]


async def test_nothing_of_a_level_is_said() -> None:
    panel = LogPanel()
    async with hosted(panel, 64, 7, focus=True) as (app, _):
        assert rows(panel)[1][2:-2].rstrip() == "Nothing has happened yet."
        panel.add(numbered(1))
        await press(app, "l")
        assert rows(panel)[1][2:-2].rstrip() == "Nothing of this level."


async def test_it_follows_the_newest() -> None:
    panel = LogPanel()
    async with hosted(panel, 64, 5):
        panel.add(numbered(*range(10)))
        assert texts(panel) == ["line 7", "line 8", "line 9"]
        panel.add(numbered(10))
        assert texts(panel) == ["line 8", "line 9", "line 10"]


async def test_it_counts_the_newer_lines_that_there_are() -> None:
    panel = LogPanel()
    async with hosted(panel, 64, 5, focus=True) as (app, _):
        panel.add(numbered(*range(10)))
        await press(app, "up")
        assert rows(panel)[-1].startswith("┗━ end to follow ━")
        panel.add(numbered(10))
        assert rows(panel)[-1].startswith("┗━ 1 newer line · end to follow ━")


async def test_one_who_has_scrolled_up_is_left_in_peace() -> None:
    panel = LogPanel()
    async with hosted(panel, 64, 5, focus=True) as (app, _):
        panel.add(numbered(*range(CAPACITY)))
        await press(app, *("up",) * 5)
        there = texts(panel)
        panel.add(numbered(*range(CAPACITY, CAPACITY + 500)))  # as many old ones are dropped
        assert texts(panel) == there == ["line 995", "line 996", "line 997"]
        assert rows(panel)[-1].startswith("┗━ 502 newer lines · end to follow ━")
        await press(app, "end")
        assert texts(panel)[-1] == "line 1499"
        assert "newer" not in rows(panel)[-1]
        panel.add(numbered(1500))
        assert texts(panel)[-1] == "line 1500"


async def test_keys_scroll() -> None:
    panel = LogPanel()
    async with hosted(panel, 64, 6, focus=True) as (app, _):
        panel.add(numbered(*range(20)))
        await press(app, "home")
        assert texts(panel) == ["line 0", "line 1", "line 2", "line 3"]
        await press(app, "down", "pagedown")
        assert texts(panel)[-1] == "line 4"
        await press(app, "pageup", "up")
        assert texts(panel)[0] == "line 0"


async def test_old_lines_are_dropped() -> None:
    panel = LogPanel()
    async with hosted(panel, 64, 5, focus=True) as (app, _):
        panel.add(numbered(*range(CAPACITY + 7)))
        await press(app, "home")
        assert texts(panel)[0] == "line 7"
        assert panel.num_rows == CAPACITY


async def test_what_is_in_view_stays_there_when_the_width_changes() -> None:
    panel = LogPanel()
    async with hosted(panel, 90, 5, focus=True) as (app, _):
        long = [LogLine(NOON, Level.INFO, "test", f"{n} " + "word " * 12) for n in range(9)]
        panel.add(long)
        await press(app, "home", *("down",) * 4)
        assert texts(panel)[0].startswith("2 word")
        await resize(app, panel, 64, 5)
        assert texts(panel)[0].startswith("2 word")


async def test_a_narrow_log_leaves_out_source_then_time_then_level() -> None:
    """Beside MQTT the log had no times at 160 columns."""
    panel = LogPanel()
    async with hosted(panel, 44, 5) as (app, _):
        panel.add(numbered(1))
        assert rows(panel)[1] == "│ 22:13:21 I line 1                        │"
        await resize(app, panel, 30, 5)
        assert rows(panel)[1] == "│ I line 1                   │"
        await resize(app, panel, 20, 5)
        assert rows(panel)[1] == "│ line 1           │"


async def test_a_line_is_picked_and_chosen() -> None:
    """Review, 8: log and screen could not be joined."""
    panel = LogPanel()
    async with hosted(panel, 64, 6, focus=True) as (app, pilot):
        panel.add(numbered(*range(9)))
        await press(app, "enter")  # it follows: no line is picked
        assert app.sent(LogPanel.Chosen) == []
        await press(app, "up", "up", "enter")
        assert [m.line.text for m in app.sent(LogPanel.Chosen)] == ["line 7"]
        picked = panel.palette.text + panel.palette.cursor
        assert any(segment.style == picked for segment in panel.render_line(3))
        panel.add(numbered(9, 10))
        assert texts(panel)[-1] == "line 8"  # what is picked stays
        await pilot.click(LogPanel, offset=(30, 1))
        await press(app, "enter")
        assert app.sent(LogPanel.Chosen)[-1].line.text == "line 5"
        await press(app, "end", "enter")
        assert len(app.sent(LogPanel.Chosen)) == 2
        assert texts(panel)[-1] == "line 10"


async def test_the_message_keeps_a_useful_width() -> None:
    """Review, 8: beside MQTT a message had 22 columns, and a record four lines."""
    panel = LogPanel()
    async with hosted(panel, 44, 6):
        panel.add([LogLine(NOON, Level.INFO, "sched", "admit 16 Kafka essay: 144 tok, 64")])
        assert rows(panel)[1] == "│ 22:13:20 I admit 16 Kafka essay: 144     │"
        assert rows(panel)[2] == "│            tok, 64                       │"
