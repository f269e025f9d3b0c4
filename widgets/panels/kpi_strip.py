"""KpiStrip: the engine in one line."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import ClassVar

from rich.cells import cell_len
from rich.style import Style

from engine.api.glossary import glosses
from engine.api.snapshot import Snapshot
from engine.api.status import EnginePhase, EngineStatus, ModelCard
from widgets.figures import compact, duration, percent, size_of
from widgets.glyphs import UNICODE, Glyphs, Mark
from widgets.line import Line, shorten
from widgets.line_view import LineView
from widgets.off_path import briefly as briefly_off
from widgets.off_path import in_a_word as off_in_a_word
from widgets.panels.gateway_readings import BrokerState
from widgets.panels.plot import Sparkline
from widgets.quantization import briefly, shortly

_METER_WIDTH = 6
_PROGRESS_WIDTH = 30
_SPARK_WIDTH = 12
_RATE_WIDTH = 10
# The width of the notice and the policy, in a strip that is at least so wide, and in others.
_WIDE = 100
_WIDE_NOTICE = 28
_NOTICE = 15


class KpiStrip(LineView):
    """The most important figures, the throughput first, each in a fixed place."""

    GLOSS: ClassVar[Mapping[str, str]] = glosses(
        *("tok/s", "policy", "TTFT", "TPOT", "running", "waiting", "KV", "preempted", "prefill")
    )

    DEFAULT_CSS = "KpiStrip { height: 1; }"

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id)
        self._snapshot: Snapshot | None = None
        self._status = EngineStatus(EnginePhase.EMPTY)
        self._tokens_per_second = 0.0
        self._prefill_per_second = 0.0
        self._broker: BrokerState | None = None
        self._sparkline = Sparkline()

    def show(
        self,
        snapshot: Snapshot | None,
        status: EngineStatus,
        tokens_per_second: float,
        prefill_per_second: float,
        broker: BrokerState | None = None,
        tokens_per_second_now: float | None = None,
    ) -> None:
        """Show the engine. Each call adds a point to the sparkline of the throughput.

        Args:
            tokens_per_second: output tokens of all sessions.
            prefill_per_second: computed prompt tokens.
            broker: the state of the broker, which is shown unless all is well; None without a
                broker.
            tokens_per_second_now: over a shorter time, for the sparkline; None is the same.
        """
        self._snapshot, self._status, self._broker = snapshot, status, broker
        self._tokens_per_second = tokens_per_second
        self._prefill_per_second = prefill_per_second
        now = tokens_per_second_now
        self._sparkline.add(tokens_per_second if now is None else now)
        self.redraw()

    def draw(self, width: int, height: int) -> list[Line]:
        status, palette = self._status, self.palette
        line = self.line(width).add(" ", palette.text)
        if self._snapshot is not None and status.phase in (EnginePhase.READY, EnginePhase.DRAINING):
            self._write_running(line, self._snapshot)
            return [line]
        broker = self._broker
        if broker is not None and broker is not BrokerState.ONLINE:
            sign = f"{self.glyphs.marks[broker.mark]} MQTT {broker}"
            line.add(sign, palette.marks[broker.mark])
            line.add(f" {self.glyphs.divider} ", palette.frame)
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
        """Write what the switch of models waits for, instead of all other figures."""
        sign = f"{self.glyphs.marks[Mark.PREFILL]} {self._status.detail}"
        line.add(shorten(sign, line.room), self.palette.marks[Mark.PREFILL])

    def _write_running(self, line: Line, snapshot: Snapshot) -> None:
        """Write each figure in a fixed place, which no value and no other figure moves. Places that
        do not fit are left out from the right."""
        palette, latency, blocks = self.palette, snapshot.latency, snapshot.blocks
        text, muted = palette.text, palette.muted
        wide = line.room >= _WIDE
        rate = f"{compact(self._tokens_per_second)} tok/s"
        line.cell(rate, _RATE_WIDTH, palette.decode + Style(bold=True)).add("  ", text)
        if self._status.phase is EnginePhase.DRAINING:
            self._write_switching(line)
            return
        notice, style = self._notice(snapshot, _WIDE_NOTICE if wide else _NOTICE)
        good = snapshot.goodput
        ttft = self._judged(latency.ttft.p50, good.ttft_target if good else math.inf)
        tpot = self._judged(latency.tpot.p50, good.tpot_target if good else math.inf)
        used = blocks.used / blocks.num_blocks
        meter = self.glyphs.meter(used, _METER_WIDTH) + " " if wide else ""
        spark = self._sparkline.cells(self.glyphs.ramp, _SPARK_WIDTH)
        preempted = f"{compact(snapshot.totals.preemptions):<4}"
        prefill = f"{compact(self._prefill_per_second):>4} tok/s"
        places: list[list[tuple[str, Style]]] = [
            [(notice, style)],
            [("TTFT ", muted), (f"{duration(latency.ttft.p50):<5}", ttft)],
            [("TPOT ", muted), (f"{duration(latency.tpot.p50):<5}", tpot)],
            [
                *(("run ", muted), (f"{compact(snapshot.num_running):<4}", text)),
                *(("wait ", muted), (f"{compact(snapshot.num_waiting):<4}", text)),
            ],
            [("KV ", muted), (meter, palette.decode), (f"{percent(used):<4}", text)],
            [(spark, palette.decode)],
            [("preempted ", muted), (preempted, text)],
            [("prefill ", muted), (prefill, text)],
        ]
        for pieces in places:
            if sum(cell_len(piece) for piece, _ in pieces) > line.room:
                return
            for piece, of in pieces:
                line.add(piece, of)
            line.add("  ", text)
        forms = _forms(snapshot.model)
        line.add(next((form for form in forms if cell_len(form) <= line.room), ""), muted)

    def _judged(self, value: float, target: float) -> Style:
        """The style of a median: bad above its target."""
        return self.palette.bad if value > target else self.palette.text

    def _notice(self, snapshot: Snapshot, width: int) -> tuple[str, Style]:
        """The text beside the throughput: warnings, and the policy, as far as both fit."""
        palette, glyphs = self.palette, self.glyphs
        knobs = {knob.name: knob for knob in snapshot.knobs}
        parts, style = [], palette.muted
        for name in ("paused", "draining"):
            if knobs[name].effective:
                parts.append(f"{glyphs.marks[Mark.STOPPED]} {name}")
                style = palette.warn
        broker = self._broker
        if broker is not None and broker is not BrokerState.ONLINE:
            sign = f"{glyphs.marks[broker.mark]} MQTT"
            taken = cell_len(" ".join([*parts, sign, str(broker)]))
            parts.append(f"{sign} {broker}" if taken <= width else sign)
            style = palette.warn if len(parts) > 1 else palette.marks[broker.mark]
        mark = glyphs.marks[Mark.IDLE if snapshot.model.off_kernels else Mark.PREFILL]
        for off in (briefly_off(snapshot.model), off_in_a_word(snapshot.model)):
            sign = f"{mark} {off}"
            if off and cell_len(" ".join([*parts, sign])) <= width:
                parts.append(sign)
                style = palette.warn
                break
        asked, policy = str(knobs["policy"].requested), str(knobs["policy"].effective)
        forms = [policy] if asked == policy else [f"{policy}→{asked}", f"→{asked}"]
        if asked != policy and knobs["paused"].effective:
            forms.insert(0, f"{policy}→{asked} on resume")
        for form in forms:
            text = " ".join([*parts, form])
            if cell_len(text) <= width:
                return glyphs.fit(f"{text:<{width}}"), style
        return glyphs.fit(f"{shorten(' '.join(parts or forms[-1:]), width):<{width}}"), style


def _forms(model: ModelCard) -> Iterator[str]:
    """The model's description, longest form first."""
    named = f"{model.name} {model.dtype} on {model.device}"
    for quantized in (shortly(model), briefly(model)):
        yield f"{named}, {quantized}" if quantized else named
