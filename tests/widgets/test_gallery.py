"""How the dashboard looks. After a change that is meant: pytest --snapshot-update, and look."""

from __future__ import annotations

from typing import Protocol

import pytest
from textual.app import App
from textual.pilot import Pilot

from tests.widgets.gallery import VIEWS, Gallery
from tests.widgets.hosting import is_grey, screen, settle
from widgets.chat_number import ChatNumber
from widgets.glyphs import ASCII, UNICODE
from widgets.line_view import LineView
from widgets.panels.batch_chart import BatchChart
from widgets.panels.device_panel import DevicePanel
from widgets.panels.gateway_panel import MqttPanel
from widgets.panels.knob_panel import KnobPanel
from widgets.panels.kpi_strip import KpiStrip
from widgets.panels.kv_map import KvMap
from widgets.panels.latency_panel import LatencyPanel
from widgets.panels.log_panel import LogPanel
from widgets.panels.session_table import SessionTable

PAGES: tuple[tuple[type[LineView], ...], ...] = (
    (KpiStrip, SessionTable, BatchChart),
    (KvMap, KnobPanel),
    (LatencyPanel, DevicePanel, LogPanel),
    (MqttPanel,),
    VIEWS,
)


class Compare(Protocol):
    """The fixture of pytest-textual-snapshot."""

    def __call__(
        self, app: App[None], *, terminal_size: tuple[int, int], run_before: object = None
    ) -> bool: ...


async def point_at_things(pilot: Pilot[None]) -> None:
    """Put a cursor where there is something to point at."""
    app = pilot.app
    assert isinstance(app, Gallery)
    if table := app.views.get(SessionTable):
        app.set_focus(table)
        await pilot.press("down", "down")
    if mqtt := app.views.get(MqttPanel):
        app.set_focus(mqtt)
        await pilot.press("down")
    if kv := app.views.get(KvMap):
        assert isinstance(kv, KvMap)
        kv.select(ChatNumber(8))


def test_large_screen(snap_compare: Compare) -> None:
    assert snap_compare(Gallery(), terminal_size=(160, 48), run_before=point_at_things)


@pytest.mark.parametrize("page", PAGES, ids=["batch", "cache", "machine", "broker", "all"])
async def test_every_page_in_ascii_and_without_colour(
    page: tuple[type[LineView], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same cells are written; the text of each panel is held by its own tests."""
    written = []
    for glyphs in (UNICODE, ASCII):
        monkeypatch.setenv("NO_COLOR", "1")  # which an app takes out of the environment
        app = Gallery(glyphs, () if page is VIEWS else page)
        async with app.run_test(size=(160, 48) if page is VIEWS else (80, 24)) as pilot:
            await point_at_things(pilot)
            await settle(app)
            assert all(view.size.height > 0 for view in app.views.values())
            assert is_grey(app)
            written.append(screen(app))
    in_unicode, in_ascii = written
    assert "".join(in_ascii).isascii()
    assert [row.isspace() for row in in_ascii] == [row.isspace() for row in in_unicode]
