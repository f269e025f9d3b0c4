from __future__ import annotations

from dataclasses import replace

from tests.widgets.hosting import hosted, rows
from tests.widgets.samples import READINGS
from widgets.device_panel import DevicePanel, GpuReading
from widgets.glyphs import ASCII


async def test_meters_with_their_figures() -> None:
    panel = DevicePanel()
    async with hosted(panel, 50, 8):
        panel.show(READINGS)
        assert rows(panel) == [
            "╭─ Devices ──────────────────────────────────────╮",
            "│ GPU  87%             ██████████████████████░░░ │",
            "│ VRAM 31.2/79.6 GiB   ██████████░░░░░░░░░░░░░░░ │",
            "│ 312 W · 61°C · 1.98 GHz · NVIDIA H100 80GB HB… │",
            "│ CPU  140% · 16 cores ██░░░░░░░░░░░░░░░░░░░░░░░ │",
            "│ RAM  28.5/128 GiB    ██████░░░░░░░░░░░░░░░░░░░ │",
            "│ RSS 3 GiB · lag p99 7.0 ms · 15 fps            │",
            "╰────────────────────────────────────────────────╯",
        ]


async def test_a_machine_without_gpu_and_without_figures_of_the_screen() -> None:
    panel = DevicePanel(ASCII)
    async with hosted(panel, 50, 6):
        panel.show(replace(READINGS, gpus=(), loop_lag=None, frames=None))
        assert rows(panel)[1:-1] == [
            "| CPU  140% - 16 cores ##....................... |",
            "| RAM  28.5/128 GiB    ######................... |",
            "| RSS 3 GiB                                      |",
            "|                                                |",
        ]


async def test_several_gpus_and_what_a_driver_does_not_tell() -> None:
    panel = DevicePanel()
    async with hosted(panel, 50, 12):
        silent = GpuReading(name="MIG 1g", utilization=None, memory_used=None, memory_total=None)
        panel.show(replace(READINGS, gpus=(READINGS.gpus[0], silent)))
        lines = rows(panel)
        assert lines[1].startswith("│ GPU0 87% ")
        assert lines[4:7] == [
            "│ GPU1 –               ░░░░░░░░░░░░░░░░░░░░░░░░░ │",
            "│ VRAM –               ░░░░░░░░░░░░░░░░░░░░░░░░░ │",
            "│ MIG 1g                                         │",
        ]
