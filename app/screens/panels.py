"""Panels: makes the dashboard's views, and updates them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.gateway.sources import MQTT
from app.screens.chats.numbering import Numbering, session_of
from app.screens.feeds.engine_watch import EngineWatch
from app.screens.feeds.gateway_watch import HttpWatch, MqttWatch
from engine.api.origin import Origin
from engine.api.snapshot import RequestView
from engine.api.telemetry import StepRecord
from widgets.glyphs import Glyphs
from widgets.panels.batch_chart import BatchChart
from widgets.panels.chat_row import YOU, ChatRow
from widgets.panels.device_panel import DevicePanel
from widgets.panels.gateway_panel import HttpPanel, MqttPanel
from widgets.panels.knob_panel import KnobPanel
from widgets.panels.kpi_strip import KpiStrip
from widgets.panels.kv_map import KvMap
from widgets.panels.latency_panel import LatencyPanel
from widgets.panels.log_panel import LogPanel
from widgets.panels.panel import Panel
from widgets.panels.session_table import SessionTable


class Panels:
    """The views of the engine.

    Args:
        numbering: the views' names of the chats of requests.
    """

    def __init__(self, glyphs: Glyphs, numbering: Numbering) -> None:
        self._numbering = numbering
        self.kpi = KpiStrip(glyphs, id="kpi")
        self.table = SessionTable(glyphs, id="sessions")
        self.batch = BatchChart(glyphs, id="batch")
        self.kv = KvMap(glyphs, id="kv")
        self.latency = LatencyPanel(glyphs, id="latency")
        self.knobs = KnobPanel(glyphs, id="knobs")
        self.devices = DevicePanel(glyphs, id="devices")
        self.log = LogPanel(glyphs, id="log")
        self.mqtt = MqttPanel(glyphs, id="mqtt")
        self.http = HttpPanel(glyphs, id="http")

    @property
    def numbered(self) -> tuple[tuple[str, Panel], ...]:
        """The name and the view of each panel that has a number. The number is its place, counted
        from 1."""
        return (
            ("Chats", self.table),
            ("Batch", self.batch),
            ("KV", self.kv),
            ("Latency", self.latency),
            ("Devices", self.devices),
            ("Knobs", self.knobs),
            ("Log", self.log),
            ("MQTT", self.mqtt),
            ("HTTP", self.http),
        )

    def show_steps(self, engine: EngineWatch, new: list[StepRecord]) -> None:
        """Update the batch and the pool, which change with every step."""
        snapshot = engine.snapshot
        if snapshot is None:
            return
        if new:
            self.batch.show(engine.records, new[-1].budget, snapshot.knob_history)
        self.kv.show(
            snapshot.blocks,
            self._numbering.names,
            snapshot.config.block_size,
            engine.kv_waste,
            snapshot.sharing,
            snapshot.pins,
            None if self.kv.wanted is None else engine.block(self.kv.wanted),
        )

    def show_figures(
        self, engine: EngineWatch, mqtt: MqttWatch, http: HttpWatch, failures: Mapping[str, str]
    ) -> None:
        """Update the panels of figures, which need not change faster than people read.

        Args:
            failures: why the last turns of chats failed that the engine does not know of, by the
                ids of the chats.
        """
        rates = engine.tokens_per_second, engine.prefill_per_second
        broker = mqtt.readings.state if mqtt.readings else None
        self.kpi.show(engine.snapshot, engine.status, *rates, broker, engine.tokens_per_second_now)
        self.mqtt.show(mqtt.readings)
        self.http.show(http.readings)
        snapshot = engine.snapshot
        rows = _rows(snapshot.requests if snapshot else (), self._numbering, failures)
        self.table.show(rows, snapshot.goodput if snapshot else None, paused=engine.paused)
        if snapshot is not None:
            self.knobs.show(snapshot.knobs, snapshot.knob_history, engine.epoch, snapshot.effect)
            self.latency.show(
                snapshot.latency, snapshot.totals, snapshot.goodput, snapshot.knob_history
            )


def _rows(
    requests: Sequence[RequestView], numbering: Numbering, failures: Mapping[str, str]
) -> list[ChatRow]:
    """Each chat with its newest request, in the order of the requests, and each request that
    belongs to no chat; then the open chats without one. A chat whose last turn failed without a
    request that the engine knows has none: figures would be those of the turn before."""
    newest: dict[str, RequestView] = {}
    for view in requests:
        key = session_of(view)
        if key not in newest or newest[key].ordinal < view.ordinal:
            newest[key] = view
    rows = []
    for key, view in newest.items():
        source = YOU if view.origin.source == Origin().source else view.origin.source
        known = None if key in failures else view
        rows.append(ChatRow(key, numbering.names[view.ordinal], source, known, failures.get(key)))
    idle = [(name, key) for key, name in numbering.chats.items() if key not in newest]
    for name, key in sorted(idle, key=lambda chat: chat[0].number):
        source = MQTT if name.number.theirs else YOU
        rows.append(ChatRow(key, name, source, failure=failures.get(key)))
    return rows
