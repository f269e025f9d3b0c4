from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.style import Style

from tests.widgets.hosting import hosted, press, resize, rows
from tests.widgets.samples import change, history, record, records
from widgets.glyphs import ASCII, UNICODE
from widgets.palette import Palette
from widgets.panels.batch_chart import MAX_STEPS_PER_COLUMN, BatchChart, ChartMode
from widgets.panels.batch_track import BatchTrack

BUDGET = 16
STEPS = [
    replace(step, budget=BUDGET)
    for step in (
        record(1, prefill_tokens=0, prefill_rows=0, decode_tokens=4),
        record(2, prefill_tokens=4, decode_tokens=4),
        record(3, prefill_tokens=12, decode_tokens=4),
        record(4, prefill_tokens=0, prefill_rows=0, decode_tokens=16),
        record(5, prefill_tokens=16, decode_tokens=0, decode_rows=0),
    )
]


def plot(chart: BatchChart) -> list[str]:
    """The last columns alone, without axis and frame."""
    return [row[-8:-2] for row in rows(chart)[1:-2]]


async def test_prefill_and_decode_have_an_axis_each() -> None:
    chart = BatchChart(ASCII)
    async with hosted(chart, 76, 9):
        chart.show(STEPS, BUDGET)
        lines = rows(chart)
        assert lines[0].startswith("+- Batch per step - tokens: # prefill . decode - budget 16 --")
        assert [line[:10] for line in lines[1:7]] == [
            "|    16|  ",
            "|      |  ",
            "|      |  ",
            "|     0|  ",
            "|    20|  ",
            "|     0|  ",
        ]
        assert plot(chart) == [" ----#", "   # #", "   # #", "  ## #", "    . ", " .... "]
        assert lines[7][2:].startswith(
            "step 5 - 12ms (fwd 11ms sched 0.4ms sample 0.5ms) - 1 seq - 16 tok"
        )


async def test_ten_decodes_are_read_beside_a_prompt_of_thousands() -> None:
    chart = BatchChart(UNICODE)
    async with hosted(chart, 40, 13):
        prompt = record(1, prefill_tokens=2048, decode_tokens=10, budget=2048)
        chart.show([prompt, record(2, prefill_tokens=0, decode_tokens=5, budget=2048)], 2048)
        lines = plot(chart)
        assert [row[-2:] for row in lines[-4:]] == ["⣿ ", "⣿ ", "⣿⣿", "⣿⣿"]
        assert [row[-2] for row in lines[:-4]] == ["█"] * 6


async def test_a_column_is_read_to_an_eighth_of_a_cell() -> None:
    chart = BatchChart(UNICODE)
    async with hosted(chart, 40, 7):
        steps = [record(n, prefill_tokens=n, decode_tokens=0, budget=16) for n in range(1, 7)]
        chart.show(steps, 16)
        assert plot(chart) == ["▔▔▔▔▔▔", "▁▂▃▄▅▆", "      ", "      "]


async def test_without_room_for_two_labels_on_each_axis_there_are_figures_alone() -> None:
    chart = BatchChart(UNICODE)
    async with hosted(chart, 70, 6):
        chart.show(STEPS, BUDGET)
        assert rows(chart)[1].split()[1:4] == ["step", "took", "forward"]
        assert rows(chart)[2].split()[1:3] == ["5", "12ms"]
        assert chart.glyphs.axis not in "".join(rows(chart))


async def test_the_least_work_is_seen() -> None:
    chart = BatchChart(UNICODE)
    async with hosted(chart, 40, 7):
        full = record(1, prefill_tokens=2048, decode_tokens=400, budget=2048)
        chart.show([full, record(2, prefill_tokens=1, decode_tokens=1, budget=2048)], 2048)
        assert [row[-2:] for row in plot(chart)] == ["█▔", "█▁", "⣶ ", "⣿⣀"]


async def test_far_below_the_budget_the_axis_ends_near_the_work() -> None:
    chart = BatchChart(ASCII)
    async with hosted(chart, 40, 8):
        chart.show([record(1, prefill_tokens=128, decode_tokens=12, budget=512)], 512)
        assert [rows(chart)[n][2:8] for n in (1, 4)] == ["  200|", "   20|"]
        chart.show([record(1, prefill_tokens=129, decode_tokens=0, budget=512)], 512)
        assert rows(chart)[1][2:8] == "  512|"


async def test_the_axis_stays_when_a_large_step_has_left_the_chart() -> None:
    """It jumped between the budget and what the last prompt needed each second."""
    chart = BatchChart(ASCII)
    async with hosted(chart, 40, 8):

        def axis_after(seconds: float, prefill: int) -> str:
            step = round(seconds * 50)
            last = record(step, end=seconds, prefill_tokens=prefill, decode_tokens=0)
            chart.show([last], 512)
            return rows(chart)[1][2:7].strip()

        assert axis_after(1, 14) == "20"
        assert axis_after(2, 300) == "512"
        assert axis_after(6, 14) == "512"
        assert axis_after(12, 0) == "512"
        assert axis_after(13, 0) == "20"
        assert axis_after(90, 0) == "20"


async def test_what_a_padded_batch_would_compute_stands_above() -> None:
    chart = BatchChart(ASCII)
    static = [
        record(1, prefill_tokens=8, decode_tokens=0, decode_rows=0, padding_tokens=8, budget=16),
        record(2, prefill_tokens=0, prefill_rows=0, decode_tokens=8, bubble_tokens=2, budget=16),
    ]
    async with hosted(chart, 90, 9, focus=True) as (app, _):
        chart.show(static, BUDGET)
        assert "tokens: # prefill . decode / padding, ended - budget 16" in rows(chart)[0]
        assert plot(chart) == ["    /-", "    / ", "    # ", "    # ", "     .", "     ."]
        assert " - 8 seq - 8 tok - 2 ended" in rows(chart)[-2]
        await press(app, "m")
        assert "sequences: # prefill . decode / ended" in rows(chart)[0]
        chart.show(static[:1], BUDGET)
        assert " - 1 seq - 8 tok - 8 padding" in rows(chart)[-2]


async def test_a_high_chart_has_the_last_steps_in_figures() -> None:
    chart = BatchChart(ASCII)
    async with hosted(chart, 90, 20, focus=True):
        chart.show([*STEPS[:4], replace(STEPS[4], preempted=("a",))], BUDGET)
        head, first, second = (row[2:-2].split() for row in rows(chart)[13:16])
        assert head == ["step", "took", "forward", "prefill", "decode", "run", "wait", "policy"]
        assert first[:7] == ["5", "12ms", "11ms", "16", "0", "9", "3"]
        assert first[7:] == ["stall_free", "-", "preempted", "1"]
        assert second[:5] == ["4", "12ms", "11ms", "0", "16"]
        assert rows(chart)[-1].startswith("*= budget: the most tokens that a step may compute =")


async def test_a_new_policy_is_named_beside_its_tick() -> None:
    chart = BatchChart(ASCII)
    policy, budget = history(last=200)
    async with hosted(chart, 60, 9, focus=True) as (app, _):
        chart.show(records(20, last=150), 512, [policy, budget])
        assert "stall_freev" in rows(chart)[1]  # at the right edge, it is named before
        chart.show(records(60, last=185), 512, [policy, budget])
        assert "vstall_free" in rows(chart)[1]
        assert rows(chart)[1].count("v") == 2  # the budget's tick has no name
        await press(app, "minus")
        full = [record(n, prefill_tokens=512, decode_tokens=0) for n in range(60, 170)]
        chart.show(full, 512, [policy])
        assert "stall" not in rows(chart)[1]  # there is no room


async def test_sequences_instead_of_tokens() -> None:
    chart = BatchChart(ASCII)
    async with hosted(chart, 76, 9, focus=True) as (app, _):
        chart.show(STEPS, BUDGET)
        tokens = plot(chart)
        await press(app, "m")
        assert chart.mode is ChartMode.SEQUENCES
        assert rows(chart)[0].startswith("*= Batch per step - sequences: # prefill . decode ==")
        assert [rows(chart)[n][2:8] for n in (1, 5)] == ["    1|", "   10|"]
        assert plot(chart) == ["  ## #", "  ## #", "  ## #", "  ## #", " .... ", " .... "]
        await press(app, "m")
        assert plot(chart) == tokens


async def test_several_steps_share_a_column() -> None:
    chart = BatchChart(ASCII)
    async with hosted(chart, 80, 9, focus=True) as (app, _):
        chart.show(STEPS, BUDGET)
        before = plot(chart)
        await press(app, "minus")
        # Steps 0 and 1, 2 and 3, 4 and 5: the means are 0, 8 and 8 tokens of prefill, 4, 4 and 8 of
        # decode.
        assert plot(chart) == ["   ---", "      ", "    ##", "    ##", "     .", "   ..."]
        assert "1 col = 2 steps" in rows(chart)[0]
        await press(app, "plus")
        assert plot(chart) == before
        for _ in range(10):
            chart.action_zoom(-1)
        assert chart.steps_per_column == MAX_STEPS_PER_COLUMN


async def test_full_columns_never_change() -> None:
    chart = BatchChart(UNICODE)
    async with hosted(chart, 60, 9):
        chart.steps_per_column = 4
        steps = records(120, last=119)  # the last column is full: steps 116 to 119
        chart.show(steps, 512)
        before = [row[8:-2] for row in rows(chart)[1:-2]]
        chart.show([*steps, replace(steps[-1], step=120)], 512)
        after = [row[8:-2] for row in rows(chart)[1:-2]]
        assert [row[1:] for row in before] == [row[:-1] for row in after]


async def test_a_knob_change_is_a_tick_where_it_took_effect() -> None:
    chart = BatchChart(ASCII)
    async with hosted(chart, 76, 9):
        steps = [replace(step, budget=16 if step.step < 4 else 8) for step in STEPS]
        steps[4] = replace(steps[4], prefill_tokens=4)
        chart.show(steps, 8, [replace(change(), step=3)])
        assert plot(chart) == [" ---v ", "   #: ", "   #--", "  ##:#", "    . ", " .... "]
        assert rows(chart)[-1].startswith(
            "+- v max_num_batched_tokens 512>256 after step 3 by you --"
        )


async def test_a_budget_that_became_tiny_is_a_line_at_the_bottom() -> None:
    chart = BatchChart(ASCII)
    async with hosted(chart, 76, 9):
        small = record(2, prefill_tokens=0, prefill_rows=0, decode_tokens=0, budget=8)
        large = record(1, prefill_tokens=600, decode_tokens=0, budget=2048)
        chart.show([large, small], 8)
        assert plot(chart)[3] == "    #-"


async def test_steps_of_the_model_before_are_left_out() -> None:
    chart = BatchChart(ASCII)
    async with hosted(chart, 76, 7):
        chart.show([record(9000), *STEPS], BUDGET)
        assert plot(chart)[-1] == " .... "


async def test_changes_out_of_view_leave_no_tick() -> None:
    chart = BatchChart(ASCII)
    async with hosted(chart, 30, 7):
        chart.show(records(200), 512, [replace(change(), step=100)])
        assert not any("v" in row or ":" in row for row in plot(chart))


async def test_half_of_the_axis_is_labelled_where_there_is_room() -> None:
    chart = BatchChart(ASCII)
    async with hosted(chart, 40, 11) as (app, _):
        chart.show(STEPS, BUDGET)
        labels = [row[2:8] for row in rows(chart)[1:-2]]
        assert labels == [
            *("   16|", "     |", "    8|", "     |", "    0|"),
            *("   20|", "     |", "    0|"),
        ]
        await resize(app, chart, 40, 9)
        assert [row[2:8] for row in rows(chart)[1:5]] == ["   16|", "     |", "     |", "    0|"]


@pytest.mark.parametrize(
    ("width", "text"),
    [
        (30, "step 5 · 12ms · 1 seq · 1…"),
        (40, "step 5 · 12ms · 1 seq · 16 tok"),
        (52, "step 5 · 12ms (fwd 11ms) · 1 seq · 16 tok"),
        (
            94,
            "step 5 · 12ms (fwd 11ms sched 0.4ms sample 0.5ms prep 0.2ms commit 0.1ms) "
            "· 1 seq · 16 tok",
        ),
    ],
)
async def test_the_last_step_in_figures(width: int, text: str) -> None:
    chart = BatchChart(UNICODE)
    async with hosted(chart, width, 7):
        chart.show(STEPS, BUDGET)
        assert rows(chart)[-2][2:-2].rstrip() == text


tokens = st.integers(0, 600)


@given(st.lists(st.tuples(tokens, tokens), min_size=1, max_size=30), st.integers(1, 12))
def test_cells_add_up(steps: list[tuple[int, int]], height: int) -> None:
    """A column's filled cells are its tokens, each kind rounded to a cell but seen."""
    top = max(max(map(sum, steps)), 1)
    style, palette = Style.null(), Palette.on(Style.null(), True, False)
    for work, waste in steps:
        track = BatchTrack([work], [waste], [0], top, ASCII.prefill, style)
        cells = [glyph for glyph, _ in track.stack(0, height, False, ASCII, palette)]
        filled = "".join(cells).rstrip()
        assert len(cells) == height
        assert filled == "".join(kind * filled.count(kind) for kind in "#/")
        assert abs(len(filled) - (work + waste) * height / top) < 2
        assert ("#" in filled) == (work > 0)


async def test_what_a_step_waited_for_structures_is_a_phase() -> None:
    chart = BatchChart(UNICODE)
    times = replace(STEPS[-1].times, mask=0.0031)
    async with hosted(chart, 94, 7):
        chart.show((*STEPS[:-1], replace(STEPS[-1], times=times)), BUDGET)
        assert "sample 0.5ms mask 3.1ms prep 0.2ms" in rows(chart)[-2]
