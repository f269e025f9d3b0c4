from __future__ import annotations

import math
from dataclasses import replace

from engine.api.snapshot import Totals
from engine.api.telemetry import Distribution
from tests.widgets.hosting import hosted, resize, rows
from tests.widgets.samples import GOODPUT, LATENCY, TOTALS, latency
from widgets.panels.latency_panel import LatencyPanel


def sparkline(panel: LatencyPanel, name: str) -> str:
    """The course of one row, without the blanks before it."""
    row = next(row for row in rows(panel) if f" {name} " in row)
    return row.rstrip("│ ").split()[-1]


async def test_percentiles_rates_and_courses() -> None:
    panel = LatencyPanel()
    async with hosted(panel, 50, 9):
        for wobble in (0.5, 1.0, 0.75, 1.0):
            panel.show(latency(wobble), TOTALS)
        assert rows(panel) == [
            "╭─ Latency 60 s · ms ────────────────────────────╮",
            "│              p50   p99           p99 over time │",
            "│ TTFT         190   640                    ▃█▅█ │",
            "│ TPOT        21.2  48.0                    ▃█▅█ │",
            "│ ITL         20.3  95.0                    ▃█▅█ │",
            "│ queue        3.0   610                    ▃█▅█ │",
            "│ prefix hit         63%                         │",
            "│ preempted            3                    ▁▁▁▁ │",
            "╰────────────────────────────────────────────────╯",
        ]


async def test_targets_and_the_share_that_meets_them() -> None:
    panel = LatencyPanel()
    async with hosted(panel, 50, 9):
        panel.show(LATENCY, TOTALS, GOODPUT)
        lines = rows(panel)
        assert lines[0].startswith("╭─ Latency 60 s · ms · good 94% ─")
        assert lines[2].startswith("│ TTFT ≤450    190   640 ")
        assert lines[3].startswith("│ TPOT ≤50.0  21.2  48.0 ")
        palette = panel.palette

        def styles(y: int) -> list[object]:
            line = list(panel.render_line(y))
            return [s.style for s in line if s.text.strip().replace(".", "").isdigit()]

        assert styles(2) == [palette.text, palette.warn]  # some are late
        assert styles(3) == [palette.text, palette.good]
        panel.show(LATENCY, TOTALS, replace(GOODPUT, tpot_target=0.02))
        assert styles(3) == [palette.bad, palette.bad]  # half of them are
        panel.show(LATENCY, TOTALS, replace(GOODPUT, share=math.nan))
        assert "good" not in rows(panel)[0]


async def test_counters_are_shown_in_all_and_drawn_as_they_grow() -> None:
    panel = LatencyPanel()
    async with hosted(panel, 50, 9):
        panel.show(LATENCY, TOTALS)
        grown = replace(
            TOTALS, preemptions=5, prefix_queried_tokens=52_000, prefix_hit_tokens=31_460
        )
        panel.show(LATENCY, grown)
        panel.show(LATENCY, replace(grown, preemptions=6))
        assert sparkline(panel, "preempted") == "▁█▅"
        assert " 60% " in rows(panel)[6]  # 31,460 of 52,000 since the model was loaded
        assert sparkline(panel, "prefix hit") == "█"  # 5,000 of 10,000 once, then none asked for


async def test_a_new_model_starts_anew() -> None:
    panel = LatencyPanel()
    async with hosted(panel, 50, 9):
        panel.show(LATENCY, TOTALS)
        panel.show(LATENCY, TOTALS)
        panel.show(LATENCY, Totals(requests=1, preemptions=2))
        assert sparkline(panel, "TTFT") == "█"
        assert sparkline(panel, "preempted") == "█"


async def test_what_was_never_measured_is_a_dash() -> None:
    panel = LatencyPanel()
    async with hosted(panel, 50, 9):
        nothing = Distribution.of(())
        panel.show(replace(LATENCY, ttft=nothing), Totals())
        assert rows(panel)[2][2:26].split() == ["TTFT", "–", "–"]
        assert rows(panel)[6][2:26].split() == ["prefix", "hit", "–"]


async def test_no_number_is_ever_cut() -> None:
    panel = LatencyPanel()
    async with hosted(panel, 24, 5) as (app, _):
        panel.show(LATENCY, TOTALS)
        assert rows(panel)[1] == "│ TTFT       190   640 │"
        await resize(app, panel, 17, 5)
        assert rows(panel)[1] == "│ TTFT      640 │"


async def test_courses_go_on_while_it_is_hidden() -> None:
    panel = LatencyPanel()
    async with hosted(panel, 50, 9) as (_, pilot):
        panel.display = False
        await pilot.pause()
        panel.show(latency(0.5), TOTALS)
        panel.show(latency(1.0), TOTALS)
        panel.display = True
        await pilot.pause()
        assert sparkline(panel, "TTFT") == "▃█"
