"""DevicePanel: the machine's resource use by the engine and the screen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from engine.api.glossary import gloss, glosses
from engine.api.status import ModelCard
from widgets.figures import duration, percent, size, size_of
from widgets.glyphs import UNICODE, Glyphs
from widgets.line import Line, shorten
from widgets.panels.panel import Panel

_LABEL_WIDTH = 5
_FIGURE_WIDTH = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """One GPU. Values that its driver does not report are None.

    Attributes:
        uuid: of the GPU or MIG instance, as the driver writes it.
        utilization: the share of time in which a kernel ran, from 0 to 1.
        memory_used, memory_total: in bytes.
        power: in watts.
        temperature: in degrees Celsius.
        clock: that of the SMs, in MHz.
    """

    name: str
    uuid: str = ""
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
        rss: the resident memory of this process, in bytes.
        memory_used, memory_total: the memory of the whole machine, in bytes.
        loop_lag: the 99th percentile of the event loop's lag, in seconds.
        frames: repaints of the screen a second.
    """

    cpu: float
    cores: int
    rss: int
    memory_used: int
    memory_total: int
    gpus: tuple[GpuReading, ...] = ()
    loop_lag: float | None = None
    frames: float | None = None


class DevicePanel(Panel, can_focus=True):
    """Meters of the machine, each with its figure.

    A GPU's number is the driver's, which need not be CUDA's. If the model is on one of several, its
    GPU has the meters and the title names it. The frame then summarizes the others, so that they
    take no line from the host.
    """

    GLOSS: ClassVar[Mapping[str, str]] = glosses("CPU", "RAM", "RSS", "lag", "p99", "fps")

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id)
        self._readings: DeviceReadings | None = None
        self._model: ModelCard | None = None

    def show(self, readings: DeviceReadings, model: ModelCard | None = None) -> None:
        """Show readings.

        Args:
            model: the loaded one; None if there is none.
        """
        self._readings, self._model = readings, model
        self.redraw()

    def title(self) -> str:
        label = self._label_of_model()
        return f"Devices · {self._model.device} is {label}" if self._model and label else "Devices"

    def footer(self) -> str:
        label = self._label_of_model()
        others = self._gpus() if label else {}
        if self.has_focus:
            return gloss("lag", "p99")
        return " · ".join(
            f"{other} {percent(gpu.utilization)} {size_of(gpu.memory_used, gpu.memory_total)}"
            for other, gpu in others.items()
            if other != label
        )

    def body(self, width: int, height: int) -> list[Line]:
        readings, palette = self._readings, self.palette
        if readings is None:
            return [self.line(width).add(shorten("Nothing measured yet.", width), palette.muted)]
        lines = []
        gpus, of_model = self._gpus(), self._label_of_model()
        for label, gpu in {of_model: gpus[of_model]}.items() if of_model else gpus.items():
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
            facts.append(f"lag p99 {duration(readings.loop_lag)}")
        if readings.frames is not None:
            facts.append(f"{readings.frames:.0f} fps")
        return [*lines, self._text(width, " · ".join(facts))]

    def _gpus(self) -> dict[str, GpuReading]:
        """The GPUs by their labels."""
        gpus = self._readings.gpus if self._readings else ()
        return {f"GPU{n}" if len(gpus) > 1 else "GPU": gpu for n, gpu in enumerate(gpus)}

    def _label_of_model(self) -> str:
        """The label of the model's GPU; empty if there is only one GPU or the model uses none."""
        gpus = self._gpus()
        uuid = self._model.gpu_uuid if self._model and len(gpus) > 1 else ""
        return next((label for label, gpu in gpus.items() if uuid and gpu.uuid == uuid), "")

    def _meter(self, width: int, label: str, share: float | None, figure: str) -> Line:
        palette = self.palette
        line = self.line(width).cell(label, _LABEL_WIDTH, palette.muted)
        line.cell(figure, min(_FIGURE_WIDTH, line.room), palette.text).add(" ", palette.text)
        return line.add(self.glyphs.meter(share or 0.0, line.room), palette.decode)

    def _text(self, width: int, text: str) -> Line:
        return self.line(width).add(shorten(text, width), self.palette.muted)


def _share(part: int | None, whole: int | None) -> float | None:
    return part / whole if part is not None and whole else None
