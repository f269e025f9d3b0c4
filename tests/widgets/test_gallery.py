"""How the dashboard looks. After a change that is meant: pytest --snapshot-update, and look."""

from __future__ import annotations

from typing import Protocol

import pytest
from textual.app import App
from textual.pilot import Pilot

from tests.widgets.gallery import Gallery
from tests.widgets.samples import MODEL_ON_SECOND_GPU, SEVERAL_GPUS
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

PAGES: dict[str, tuple[type[LineView], ...]] = {
    "batch": (KpiStrip, SessionTable, BatchChart),
    "cache": (KvMap, KnobPanel),
    "machine": (LatencyPanel, DevicePanel, LogPanel),
    "broker": (MqttPanel,),
}


class Compare(Protocol):
    """The fixture of pytest-textual-snapshot."""

    def __call__(
        self, app: App[None], *, terminal_size: tuple[int, int], run_before: object = None
    ) -> bool: ...


@pytest.fixture(params=["unicode", "ascii", "no_color"])
def look(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    look: str = request.param
    if look == "no_color":
        monkeypatch.setenv("NO_COLOR", "1")
    return look


def gallery(look: str, only: tuple[type[LineView], ...] = ()) -> Gallery:
    return Gallery(ASCII if look == "ascii" else UNICODE, only)


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


@pytest.mark.parametrize("page", PAGES)
def test_small_screen(snap_compare: Compare, look: str, page: str) -> None:
    assert snap_compare(
        gallery(look, PAGES[page]), terminal_size=(80, 24), run_before=point_at_things
    )


def test_model_on_one_of_several_gpus(snap_compare: Compare, look: str) -> None:
    async def show(pilot: Pilot[None]) -> None:
        assert isinstance(pilot.app, Gallery)
        panel = pilot.app.views[DevicePanel]
        assert isinstance(panel, DevicePanel)
        panel.show(SEVERAL_GPUS, MODEL_ON_SECOND_GPU)

    page = gallery(look, PAGES["machine"])
    assert snap_compare(page, terminal_size=(80, 24), run_before=show)


def test_large_screen(snap_compare: Compare, look: str) -> None:
    assert snap_compare(gallery(look), terminal_size=(160, 48), run_before=point_at_things)
