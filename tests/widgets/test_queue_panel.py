"""The panel of docs/examples/, as CONTRIBUTING.md has it."""

from __future__ import annotations

from dataclasses import replace

from engine.api.origin import Origin
from tests.support.examples import example
from tests.widgets.hosting import hosted, rows
from tests.widgets.samples import snapshot, waiting
from widgets.glyphs import ASCII

QueuePanel = example("queue_panel").QueuePanel


async def test_those_who_wait_for_how_long_and_why() -> None:
    panel = QueuePanel()
    async with hosted(panel, 64, 6):
        panel.show(snapshot())
        assert rows(panel) == [
            "╭─ Queue · 3 waiting ──────────────────────────────────────────╮",
            "│ Haiku            0.1 s  the pool just ran out of blocks      │",
            "│ bot-9            0.6 s  no blocks: it needs 51, 12 of 2048…  │",
            "│ Translate        1.2 s  behind 2 others                      │",
            "│                                                              │",
            "╰──────────────────────────────────────────────────────────────╯",
        ]


async def test_nobody_waits() -> None:
    panel = QueuePanel(ASCII)
    async with hosted(panel, 30, 4):
        assert "Nobody waits." in rows(panel)[1]
        panel.show(snapshot(requests=(), num_waiting=0))
        assert rows(panel)[:2] == [
            "+- Queue - 0 waiting --------+",
            "| Nobody waits.              |",
        ]


async def test_a_title_of_strangers_in_little_room() -> None:
    hostile = waiting(1, 0.5, "because", origin=Origin(title="\x1b[31mA long title from afar"))
    unmeasured = replace(waiting(2, 0.5, "so"), queue=None)
    panel = QueuePanel()
    async with hosted(panel, 34, 4):
        panel.show(snapshot(requests=(hostile, unmeasured, hostile), num_waiting=3))
        assert rows(panel)[1:-1] == [
            "│  [31mA long t…   0.5 s  becau… │",
            "│ Chat 2                  so     │",
        ]
