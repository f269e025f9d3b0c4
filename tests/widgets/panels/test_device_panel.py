from __future__ import annotations

from dataclasses import replace

from tests.widgets.hosting import hosted, rows
from tests.widgets.samples import MODEL, MODEL_ON_SECOND_GPU, READINGS, SEVERAL_GPUS
from widgets.glyphs import ASCII
from widgets.panels.device_panel import DevicePanel, GpuReading


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
            "│ RSS 3 GiB · lag p99 7.0ms · 15 fps             │",
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


async def test_the_gpu_of_the_model_has_the_meters_and_the_others_the_frame() -> None:
    panel = DevicePanel()
    async with hosted(panel, 50, 8):
        panel.show(SEVERAL_GPUS, MODEL_ON_SECOND_GPU)
        assert rows(panel) == [
            "╭─ Devices · cuda:0 is GPU1 ─────────────────────╮",
            "│ GPU1 87%             ██████████████████████░░░ │",
            "│ VRAM 31.2/79.6 GiB   ██████████░░░░░░░░░░░░░░░ │",
            "│ 312 W · 61°C · 1.98 GHz · NVIDIA H100 80GB HB… │",
            "│ CPU  140% · 16 cores ██░░░░░░░░░░░░░░░░░░░░░░░ │",
            "│ RAM  28.5/128 GiB    ██████░░░░░░░░░░░░░░░░░░░ │",
            "│ RSS 3 GiB · lag p99 7.0ms · 15 fps             │",
            "╰─ GPU0 12% 3.1/15 GiB · GPU2 – – ───────────────╯",
        ]


async def test_without_a_model_on_one_of_them_all_gpus_have_meters() -> None:
    panel = DevicePanel()
    async with hosted(panel, 50, 14):
        nowhere = replace(MODEL, gpu_uuid="GPU-4")
        for model in (None, MODEL, nowhere):
            panel.show(SEVERAL_GPUS, MODEL_ON_SECOND_GPU)
            panel.show(SEVERAL_GPUS, model)
            lines = rows(panel)
            assert lines[0].startswith("╭─ Devices ───")
            assert [line[2:6] for line in lines[1:10:3]] == ["GPU0", "GPU1", "GPU2"]
            assert lines[-1].startswith("╰────")


async def test_one_gpu_needs_no_mark() -> None:
    panel = DevicePanel()
    async with hosted(panel, 50, 8):
        panel.show(replace(READINGS, gpus=SEVERAL_GPUS.gpus[1:2]), MODEL_ON_SECOND_GPU)
        lines = rows(panel)
        assert lines[0].startswith("╭─ Devices ───")
        assert lines[1].startswith("│ GPU  87% ")
        assert lines[-1].startswith("╰────")


async def test_gpus_whose_uuids_are_not_told_are_not_taken_for_the_models() -> None:
    panel = DevicePanel()
    async with hosted(panel, 50, 14):
        gpus = tuple(replace(gpu, uuid="") for gpu in SEVERAL_GPUS.gpus)
        panel.show(replace(READINGS, gpus=gpus), MODEL)
        assert rows(panel)[0].startswith("╭─ Devices ───")
