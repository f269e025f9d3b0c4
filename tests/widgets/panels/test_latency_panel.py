from __future__ import annotations

import math
from dataclasses import replace

import pytest

from engine.api.telemetry import Distribution
from tests.widgets.hosting import hosted, press, resize, rows
from tests.widgets.samples import GOODPUT, LATENCY, TOTALS, history, timed
from widgets.glyphs import ASCII, UNICODE, Glyphs
from widgets.panels.latency_panel import LatencyPanel

NOTHING = Distribution.of(())
EMPTY = replace(LATENCY, ttft=NOTHING, tpot=NOTHING, itl=NOTHING, queue=NOTHING, until=973.0)


async def test_figures_and_a_line_against_its_target_with_a_scale() -> None:
    panel = LatencyPanel()
    async with hosted(panel, 43, 16):
        panel.show(LATENCY, TOTALS, GOODPUT)
        assert rows(panel) == [
            "╭─ Latency 1m · good 94% ─────────────────╮",
            "│                 p50   p99     n         │",
            "│ ▸TTFT ≤450ms  190ms 640ms    40         │",
            "│  TPOT ≤50ms    21ms  48ms    38         │",
            "│  ITL           20ms  95ms  4.0k         │",
            "│  queue        3.0ms 610ms    40         │",
            "│  prefix hit 63% · preempted 3           │",
            "│ TTFT p99 over 1m · target ≤450ms        │",
            "│  1.00s┤                                 │",
            "│       │                                 │",
            "│  500ms┤  ⡠⠒⠒⢄⡀          ⣀⠔⠒⢄⡀           │",
            "│ ≤450ms┤⡠⠊────⠈⠢⡀──────⢀⠎────⠈⢆───────⡠⠒ │",
            "│       │        ⠑⢄   ⢀⡔⠁       ⠑⢄   ⢀⠔⠁  │",
            "│      0┤          ⠑⠒⠒⠁           ⠑⠒⠒⠁    │",
            "│        -1m           -30s           now │",
            "╰─────────────────────────────────────────╯",
        ]
        palette = panel.palette
        above = [s.style for s in panel.render_line(10) if "⠒" in s.text]
        below = [s.style for s in panel.render_line(12) if "⡔" in s.text]
        assert (set(above), set(below)) == ({palette.warn}, {palette.decode})


@pytest.mark.parametrize(("glyphs", "said"), [(UNICODE, "┤≤9.00s ↑ "), (ASCII, "|<9.00s ^ ")])
async def test_a_target_far_above_the_line_is_told_at_the_top_edge(
    glyphs: Glyphs, said: str
) -> None:
    panel = LatencyPanel(glyphs)
    async with hosted(panel, 43, 16):
        panel.show(LATENCY, TOTALS, replace(GOODPUT, ttft_target=9.0))
        assert rows(panel)[8][2:].startswith(f" 1.00s{said}")
        above = [s.style for s in panel.render_line(8) if "9.00s" in s.text]
        assert above == [panel.palette.good]


async def test_a_chart_is_drawn_in_three_lines_too() -> None:
    panel = LatencyPanel()
    async with hosted(panel, 43, 11):
        panel.show(LATENCY, TOTALS, GOODPUT)
        assert [row[2:9] for row in rows(panel)[7:10]] == ["  1.00s┤"[1:], "≤450ms┤", "       "]
        panel.show(EMPTY, TOTALS, GOODPUT)
        assert "TTFT: no sample" in rows(panel)[7]


async def test_after_the_window_nothing_is_left_and_it_says_so() -> None:
    panel = LatencyPanel()
    async with hosted(panel, 60, 16):
        panel.show(EMPTY, TOTALS)
        lines = rows(panel)
        for line, name in zip(lines[2:6], ("TTFT", "TPOT", "ITL", "queue"), strict=True):
            assert line.strip("│ ▸").split() == [name, "no", "sample"]
        assert lines[6].strip("│ ") == "prefix hit 63% · preempted 3 · since the start"
        assert "TTFT: no sample" in lines[7]
        assert not any(0x2801 <= ord(c) <= 0x28FF for line in lines for c in line)
        panel.show(LATENCY, TOTALS)
        assert any(0x2801 <= ord(c) <= 0x28FF for line in rows(panel) for c in line)


async def test_targets_and_the_share_that_meets_them() -> None:
    panel = LatencyPanel()
    async with hosted(panel, 50, 9):
        panel.show(LATENCY, TOTALS, replace(GOODPUT, late=3))
        lines = rows(panel)
        assert lines[0].startswith("╭─ Latency 1m · good 94%, 3 late ─")
        palette = panel.palette

        def styles(y: int) -> list[object]:
            line = list(panel.render_line(y))
            return [s.style for s in line if s.text.strip().endswith("ms") and "≤" not in s.text]

        assert styles(2) == [palette.text, palette.warn]  # some are late
        assert styles(3) == [palette.text, palette.good]
        panel.show(LATENCY, TOTALS, replace(GOODPUT, tpot_target=0.02))
        assert styles(3) == [palette.bad, palette.bad]  # half of them are
        panel.show(LATENCY, TOTALS, replace(GOODPUT, share=math.nan))
        assert "good" not in rows(panel)[0]


async def test_knob_changes_are_marked_where_they_were_made() -> None:
    panel = LatencyPanel(ASCII)
    async with hosted(panel, 67, 16):
        last = replace(history()[-1], time=873.0 - 30.0)
        panel.show(LATENCY, TOTALS, GOODPUT, [replace(last, time=500.0), last])
        lines = rows(panel)
        places = [line.index("v") for line in lines[8:9]]
        (middle,) = {line.index("-30s") for line in lines if "-30s" in line}
        assert all(abs(place - middle) <= 3 for place in places)
        assert sum("v" in line for line in lines[8:14]) == 1


async def test_a_wide_panel_shows_the_spread_and_keys_choose_the_latency() -> None:
    panel = LatencyPanel()
    async with hosted(panel, 80, 16, focus=True) as (app, _):
        panel.show(LATENCY, TOTALS, GOODPUT)
        lines = rows(panel)
        assert "TTFT · samples by time" in lines[7]
        assert lines[8].split("≤")[-1].split()[:2] == ["200ms", "10"]
        assert lines[-1].startswith("┗━ TTFT: time to first token")
        await press(app, "down", "down")
        assert "ITL p99 over 1m" in rows(panel)[7]
        assert "ITL: inter-token latency" in rows(panel)[-1]
        await press(app, "minus")
        assert "ITL p99 over 2m" in rows(panel)[7]
        await press(app, "plus", "plus")
        assert "ITL p99 over 1m" in rows(panel)[7]


async def test_a_large_panel_shows_all_of_them() -> None:
    panel = LatencyPanel()
    async with hosted(panel, 156, 44):
        panel.show(LATENCY, TOTALS, GOODPUT)
        text = "\n".join(rows(panel))
        for name in ("TTFT", "TPOT", "ITL", "queue"):
            assert f"{name} p99 over 1m" in text
            assert f"{name} · samples by time" in text


async def test_while_replies_run_it_is_not_denied_that_they_have_a_tpot() -> None:
    """Below a median of four samples stood "TPOT: no sample"."""
    panel = LatencyPanel()
    async with hosted(panel, 80, 24):
        panel.action_choose(1)
        for tpot, said in ((LATENCY.tpot, "no reply has ended in 1m"), (NOTHING, "no sample")):
            panel.show(replace(LATENCY, tpot=tpot, samples={}), TOTALS)
            assert f"TPOT: {said}" in "\n".join(rows(panel))


async def test_a_zoomed_panel_looks_further_back() -> None:
    panel = LatencyPanel()
    async with hosted(panel, 80, 24, focus=True) as (app, pilot):
        old = replace(LATENCY, samples={"ttft": timed([0.3], 1.0, until=700.0)})
        panel.show(old, TOTALS)
        assert "TTFT: no sample" in "\n".join(rows(panel))
        app.screen.maximize(panel)
        await pilot.pause()
        panel.redraw()
        assert "TTFT p99 over 5m" in "\n".join(rows(panel))


@pytest.mark.parametrize(
    ("width", "row"), [(24, "│ ▸TTFT    190ms 640ms │"), (17, "│ ▸TTFT   640ms │")]
)
async def test_no_number_is_ever_cut(width: int, row: str) -> None:
    panel = LatencyPanel()
    async with hosted(panel, 60, 5) as (app, _):
        panel.show(LATENCY, TOTALS)
        await resize(app, panel, width, 5)
        assert rows(panel)[1] == row
