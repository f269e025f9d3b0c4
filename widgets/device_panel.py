"""DevicePanel: what the machine spends on the engine and on the screen."""

from __future__ import annotations

from dataclasses import dataclass

from widgets.figures import ms, percent, size, size_of
from widgets.glyphs import UNICODE, Glyphs
from widgets.line import Line, shorten
from widgets.panel import Panel

_LABEL_WIDTH = 5
_FIGURE_WIDTH = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """One GPU. What its driver does not tell is None.

    Attributes:
        utilization: the share of time in which a kernel ran, from 0 to 1.
        memory_used, memory_total: in bytes.
        power: in watts.
        temperature: in degrees Celsius.
        clock: that of the SMs, in MHz.
    """

    name: str
    utilization: float | None
    memory_used: int | None
    memory_total: int | None
    power: float | None = None
    temperature: float | None = None
    clock: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReadings:
    """The machine at one moment.

    Attributes:
        cpu: how many cores this process uses; 1.4 is 140 % of a core.
        cores: how many cores it may use.
        rss: the memory that this process holds, in bytes.
        memory_used, memory_total: the memory of the whole machine, in bytes.
        loop_lag: the 99th percentile of how late the interface's event loop runs, in seconds.
        frames: repaints of the screen in a second.
    """

    cpu: float
    cores: int
    rss: int
    memory_used: int
    memory_total: int
    gpus: tuple[GpuReading, ...] = ()
    loop_lag: float | None = None
    frames: float | None = None


class DevicePanel(Panel):
    """Meters of the machine, each with its figure."""

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id)
        self._readings: DeviceReadings | None = None

    def show(self, readings: DeviceReadings) -> None:
        self._readings = readings
        self.redraw()

    def title(self) -> str:
        return "Devices"

    def body(self, width: int, height: int) -> list[Line]:
        readings, palette = self._readings, self.palette
        if readings is None:
            return [self.line(width).add(shorten("Nothing measured yet.", width), palette.muted)]
        lines = []
        for number, gpu in enumerate(readings.gpus):
            label = f"GPU{number}" if len(readings.gpus) > 1 else "GPU"
            lines.append(self._meter(width, label, gpu.utilization, percent(gpu.utilization)))
            memory = _share(gpu.memory_used, gpu.memory_total)
            figure = size_of(gpu.memory_used, gpu.memory_total)
            lines.append(self._meter(width, "VRAM", memory, figure))
            facts = [
                "" if gpu.power is None else f"{gpu.power:.0f} W",
                "" if gpu.temperature is None else f"{gpu.temperature:.0f}°C",
                "" if gpu.clock is None else f"{gpu.clock / 1000:.2f} GHz",
                gpu.name,
            ]
            lines.append(self._text(width, " · ".join(fact for fact in facts if fact)))
        figure = f"{percent(readings.cpu)} · {readings.cores} cores"
        lines.append(self._meter(width, "CPU", readings.cpu / readings.cores, figure))
        memory = _share(readings.memory_used, readings.memory_total)
        figure = size_of(readings.memory_used, readings.memory_total)
        lines.append(self._meter(width, "RAM", memory, figure))
        facts = [f"RSS {size(readings.rss)}"]
        if readings.loop_lag is not None:
            facts.append(f"lag p99 {ms(readings.loop_lag)} ms")
        if readings.frames is not None:
            facts.append(f"{readings.frames:.0f} fps")
        return [*lines, self._text(width, " · ".join(facts))]

    def _meter(self, width: int, label: str, share: float | None, figure: str) -> Line:
        palette = self.palette
        line = self.line(width).cell(label, _LABEL_WIDTH, palette.muted)
        line.cell(figure, min(_FIGURE_WIDTH, line.room), palette.text).add(" ", palette.text)
        return line.add(self.glyphs.meter(share or 0.0, line.room), palette.decode)

    def _text(self, width: int, text: str) -> Line:
        return self.line(width).add(shorten(text, width), self.palette.muted)


def _share(part: int | None, whole: int | None) -> float | None:
    return part / whole if part is not None and whole else None
