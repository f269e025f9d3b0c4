"""All the dashboard's views in one app, on sample data."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import App, ComposeResult
from textual.containers import Horizontal, Vertical

from tests.widgets import pools, samples
from widgets.glyphs import UNICODE, Glyphs
from widgets.line_view import LineView
from widgets.panels.batch_chart import BatchChart
from widgets.panels.device_panel import DevicePanel
from widgets.panels.gateway_panel import HttpPanel, MqttPanel
from widgets.panels.knob_panel import KnobPanel
from widgets.panels.kpi_strip import KpiStrip
from widgets.panels.kv_map import KvMap
from widgets.panels.latency_panel import LatencyPanel
from widgets.panels.log_panel import LogPanel
from widgets.panels.session_table import SessionTable

VIEWS = (
    KpiStrip,
    SessionTable,
    KnobPanel,
    BatchChart,
    KvMap,
    LatencyPanel,
    DevicePanel,
    LogPanel,
)


class Gallery(App[None]):
    """All views in two columns, or some of them one below the other."""

    CSS = """
    #left { width: 44%; }
    #right { width: 56%; }
    #left, #right, #only, #row > * { height: 1fr; width: 1fr; }
    #row { height: 9; }
    SessionTable, KvMap, LogPanel { height: 1fr; }
    KnobPanel { height: 15; }
    BatchChart { height: 12; }
    #only > Panel { height: 1fr; }
    """

    def __init__(self, glyphs: Glyphs = UNICODE, only: Sequence[type[LineView]] = ()) -> None:
        super().__init__()
        self.only = only
        self.views = {view: view(glyphs) for view in only or VIEWS}

    def compose(self) -> ComposeResult:
        views = self.views
        if self.only:
            with Vertical(id="only"):
                yield from views.values()
            return
        yield views[KpiStrip]
        with Horizontal(id="columns"):
            with Vertical(id="left"):
                yield views[SessionTable]
                yield views[KnobPanel]
            with Vertical(id="right"):
                yield views[BatchChart]
                yield views[KvMap]
                with Horizontal(id="row"):
                    yield views[LatencyPanel]
                    yield views[DevicePanel]
                yield views[LogPanel]

    def on_mount(self) -> None:
        for view in self.views.values():
            fill(view)


def fill(view: LineView) -> None:
    """Show the sample data."""
    match view:
        case KpiStrip():
            for point in range(20):
                view.show(samples.snapshot(), samples.READY, 40.0 + point * 7 % 11, 6100.0)
            view.show(samples.snapshot(), samples.READY, 47.0, 6100.0)
        case LatencyPanel():
            view.show(samples.LATENCY, samples.TOTALS, samples.GOODPUT, samples.history())
        case BatchChart():
            view.show(samples.records(), 256, samples.history())
        case KvMap():
            view.show(pools.block_map(), samples.NAMES, 16, 0.04, pools.SHARING, pools.PINS)
        case SessionTable():
            view.show(samples.chats(samples.views()), samples.GOODPUT)
        case DevicePanel():
            view.show(samples.READINGS)
        case KnobPanel():
            view.show(samples.knobs(), samples.history(), effect=samples.EFFECT)
        case MqttPanel():
            view.show(samples.MQTT)
        case HttpPanel():
            view.show(samples.HTTP)
        case LogPanel():
            view.add(samples.log_lines())
