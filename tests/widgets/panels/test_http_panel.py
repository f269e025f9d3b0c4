from __future__ import annotations

from dataclasses import replace

from tests.widgets.hosting import hosted, rows, settle
from tests.widgets.samples import HTTP
from widgets.panels.gateway_panel import HttpPanel
from widgets.panels.gateway_readings import HttpReadings, HttpState


async def shown(readings: HttpReadings | None, width: int, height: int = 24) -> list[str]:
    """The lines within the frame that have something in them."""
    panel = HttpPanel()
    async with hosted(panel, width, height):
        panel.show(readings)
        return [line for row in rows(panel)[1:-1] if (line := row[2:-2].rstrip())]


async def test_everything_at_once() -> None:
    panel = HttpPanel()
    async with hosted(panel, 78, 10) as (app, _):
        panel.show(HTTP)
        assert rows(panel) == [
            "╭─ HTTP ─────────────────────────────────────────────────────────────────────╮",
            "│ ✓ serving 12m · http://127.0.0.1:8000                                      │",
            "│ in/s     4.2      out/s    3.8      live     16       accepted 2.0k        │",
            "│ no token 2        finished 2.0k     open     24       rejected 4           │",
            "│ arrival to first token p50 41ms p99 120ms                                  │",
            "│ rejected 3 no key (401) · 1 over the quota (429)                           │",
            "│ users eval 12, 2 no token · anonymous 4, 4 rejected                        │",
            "│ 1 bad message                                                              │",
            "│   22:13:20 400 temperature is -1; it should be greater than or equal to 0… │",
            "╰────────────────────────────────────────────────────────────────────────────╯",
        ]
        panel.focus()
        await settle(app)
        assert "open: open connections of clients" in rows(panel)[-1]


async def test_without_a_gateway_it_says_how_to_have_one() -> None:
    assert " ".join(await shown(None, 60)) == HttpPanel.OFF


async def test_what_it_has_stopped_of_is_told() -> None:
    stopped = replace(HTTP, state=HttpState.STOPPED, detail="OSError: no file descriptors")
    lines = await shown(stopped, 60)
    assert lines[0].startswith("✗ stopped 12m")
    assert "OSError: no file descriptors" in lines
