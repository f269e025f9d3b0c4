"""KpiStrip: shows the engine in one line."""

from __future__ import annotations

from rich.cells import cell_len
from rich.style import Style

from engine.api.knobs import Knobs
from engine.api.snapshot import Snapshot
from engine.api.status import EnginePhase, EngineStatus
from widgets.figures import compact, count, duration, percent, size_of
from widgets.glyphs import UNICODE, Glyphs, Mark
from widgets.history import History
from widgets.line import Line, shorten
from widgets.line_view import LineView
from widgets.panels.broker_state import BrokerState

_METER_WIDTH = 10
_MIN_METER_WIDTH = 4
_PROGRESS_WIDTH = 30
_SPARK_WIDTH = 12


class KpiStrip(LineView):
    """The figures that matter most, the most important first. A part that does not fit is left out
    as a whole."""

    DEFAULT_CSS = "KpiStrip { height: 1; }"

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id)
        self._snapshot: Snapshot | None = None
        self._status = EngineStatus(EnginePhase.EMPTY)
        self._tokens_per_second = 0.0
        self._prefill_per_second = 0.0
        self._broker: BrokerState | None = None
        self._history = History()

    def show(
        self,
        snapshot: Snapshot | None,
        status: EngineStatus,
        tokens_per_second: float,
        prefill_per_second: float,
        broker: BrokerState | None = None,
    ) -> None:
        """Show the engine. Each call adds a point to the course of the throughput.

        Args:
            tokens_per_second: output tokens of all sessions together.
            prefill_per_second: prompt tokens that were computed.
            broker: the state of the broker, which comes first unless all is well; None without a
                broker.
        """
        self._snapshot, self._status, self._broker = snapshot, status, broker
        self._tokens_per_second = tokens_per_second
        self._prefill_per_second = prefill_per_second
        self._history.add(tokens_per_second)
        self.redraw()

    def draw(self, width: int, height: int) -> list[Line]:
        status, palette = self._status, self.palette
        line = self.line(width).add(" ", palette.text)
        broker = self._broker
        if broker is not None and broker is not BrokerState.ONLINE:
            sign = f"{self.glyphs.marks[broker.mark]} MQTT {broker}"
            self._write_part(line, (sign, palette.marks[broker.mark]))
        if self._snapshot is not None and status.phase in (EnginePhase.READY, EnginePhase.DRAINING):
            if status.phase is EnginePhase.DRAINING:
                self._write_switching(line)
            self._write_running(line, self._snapshot)
            return [line]
        self._write_part(line, ("", palette.text))  # a divider, if something stands before it
        if status.phase is EnginePhase.LOADING:
            self._write_loading(line)
        else:
            failed = status.phase is EnginePhase.FAILED
            mark = Mark.FAILED if failed else Mark.IDLE
            word = "no model" if status.phase is EnginePhase.EMPTY else str(status.phase)
            line.add(f"{self.glyphs.marks[mark]} {word}  ", palette.marks[mark])
            said = ": ".join(part for part in (status.model, status.detail) if part)
            line.add(shorten(said, line.room), palette.text)
        return [line]

    def _write_loading(self, line: Line) -> None:
        status, palette = self._status, self.palette
        line.add(f"{self.glyphs.marks[Mark.PREFILL]} loading ", palette.marks[Mark.PREFILL])
        line.add(shorten(status.model, line.room) + "  ", palette.strong)
        if status.total_bytes:
            figure = f" {size_of(status.loaded_bytes, status.total_bytes)}  "
            meter = min(line.room - len(figure), _PROGRESS_WIDTH)
            share = status.loaded_bytes / status.total_bytes
            line.add(self.glyphs.meter(share, meter), palette.prefill).add(figure, palette.text)
        line.add(shorten(status.detail, line.room), palette.muted)

    def _write_switching(self, line: Line) -> None:
        """Write what the switch of models waits for, even if nothing else fits beside it."""
        divider = f" {self.glyphs.divider} " if len(line.segments) > 1 else ""
        line.add(divider, self.palette.frame)
        sign = f"{self.glyphs.marks[Mark.PREFILL]} {self._status.detail}"
        line.add(shorten(sign, line.room), self.palette.marks[Mark.PREFILL])

    def _write_running(self, line: Line, snapshot: Snapshot) -> None:
        palette, latency, blocks = self.palette, snapshot.latency, snapshot.blocks
        text, muted, strong = palette.text, palette.muted, palette.strong
        for knob in snapshot.knobs:
            if knob.name in ("paused", "draining") and knob.effective:
                halt = f"{self.glyphs.marks[Mark.STOPPED]} {knob.name}"
                self._write_part(line, (halt, palette.warn))
        self._write_part(
            line,
            ("ttft ", muted),
            (duration(latency.ttft.p50), strong),
            ("  tpot ", muted),
            (duration(latency.tpot.p50), strong),
        )
        knobs = {knob.name: knob for knob in snapshot.knobs}
        asked, policy = str(knobs["policy"].requested), str(knobs["policy"].effective)
        changed = any(c.before.policy != c.after.policy for c in snapshot.knob_history)
        # A policy that is not the usual one stays in view even where there is little room.
        notable = changed or {policy, asked} != {Knobs().policy}
        if notable:
            self._write_policy(line, policy, asked, bool(knobs["paused"].effective))
        self._write_part(
            line,
            ("run ", muted),
            (count(snapshot.num_running), strong),
            (" wait ", muted),
            (count(snapshot.num_waiting), strong),
            (" pre ", muted),
            (compact(snapshot.totals.preemptions), strong),
        )
        used = blocks.used / blocks.num_blocks
        figure = f" {percent(used)}"
        room = line.room - len(f" {self.glyphs.divider} KV {figure}")
        meter = self.glyphs.meter(used, min(max(room, _MIN_METER_WIDTH), _METER_WIDTH))
        self._write_part(line, ("KV ", muted), (meter, palette.decode), (figure, text))
        rate = f"{compact(self._tokens_per_second)} tok/s "
        room = line.room - len(rate) - 3
        spark = self._history.sparkline(self.glyphs.ramp, max(0, min(room, _SPARK_WIDTH)))
        self._write_part(line, (rate, strong), (spark, palette.decode))
        if not notable:
            self._write_part(line, ("policy ", muted), (policy, strong))
        prefill = compact(self._prefill_per_second)
        self._write_part(line, ("prefill ", muted), (f"{prefill} tok/s", text))
        model = snapshot.model
        self._write_part(line, (model.name, strong), (f" {model.dtype} on {model.device}", muted))

    def _write_policy(self, line: Line, policy: str, asked: str, paused: bool) -> None:
        """Write the policy in force and the one asked for; only the latter if both do not fit."""
        both = policy if policy == asked else f"{policy}→{asked}"
        forms = [f"policy {both}", both, f"→{asked}" if policy != asked else policy]
        if policy != asked and paused:
            forms.insert(0, f"policy {both} on resume")
        room = line.room - (3 if len(line.segments) > 1 else 0)
        text = next((form for form in forms if cell_len(form) <= room), "")
        if text:
            label = "policy " if text.startswith("policy ") else ""
            muted, strong = self.palette.muted, self.palette.strong
            self._write_part(line, (label, muted), (text.removeprefix(label), strong))

    def _write_part(self, line: Line, *pieces: tuple[str, Style]) -> None:
        """Append a part after a divider, or nothing if it does not fit."""
        first = len(line.segments) == 1
        divider = "" if first else f" {self.glyphs.divider} "
        if sum(cell_len(text) for text, _ in pieces) + len(divider) <= line.room:
            line.add(divider, self.palette.frame)
            for text, style in pieces:
                line.add(text, style)
