from __future__ import annotations

from dataclasses import replace

import pytest
from rich.style import Style

from tests.widgets.samples import EFFECT, NOON, change, history
from widgets.figures import time_of_day
from widgets.glyphs import UNICODE
from widgets.line_view import LineView
from widgets.palette import Palette
from widgets.panels.knob_history import KnobHistory


@pytest.fixture
def shown() -> KnobHistory:
    view = LineView(UNICODE)
    view._palette = Palette.on(Style.null(), False, True)
    return KnobHistory(view)


def text(history: KnobHistory, width: int) -> list[str]:
    lines = history.lines(width)
    assert all(line.room >= 0 for line in lines)
    return ["".join(segment.text for segment in line.segments).rstrip() for line in lines]


def test_who_changed_what_and_when_newest_first(shown: KnobHistory) -> None:
    policy, budget = history()
    undone = replace(budget, undoes=True, who="bot-7", time=300.0)
    shown.set_changes([policy, budget, undone], NOON, None)
    assert text(shown, 60) == [
        f"{time_of_day(NOON + 300)} bot-7 undo: max_num_batched_tokens 512→256",
        f"{time_of_day(NOON + budget.time)} you max_num_batched_tokens 512→256",
        f"{time_of_day(NOON + policy.time)} you policy static→stall_free",
    ]


def test_what_is_too_long_goes_on_in_the_next_line(shown: KnobHistory) -> None:
    shown.set_changes([change()], NOON, None)
    first, second = text(shown, 40)
    assert first.endswith("you max_num_batched_tokens")
    assert second == "         512→256"


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (60, "TTFT p50      190ms of 12  240ms of 8"),
        (38, "TTFT p50      190ms of 12  240ms of 8"),
        (37, "TTFT p50      190ms  240ms"),
        (20, "TTFT…   190ms  240ms"),
    ],
)
def test_before_and_since_side_by_side(shown: KnobHistory, width: int, line: str) -> None:
    shown.set_changes(history(), NOON, EFFECT)
    lines = text(shown, width)
    assert lines[2] == line
    assert lines[0].split()[-2:] == ["before", "since"]
    assert lines[5].split()[2:] == ["300ms", "60ms"]  # of 900 and 700: no doubt about these


def test_what_does_not_compare_is_no_effect(shown: KnobHistory) -> None:
    shown.set_changes(history(), NOON, EFFECT)
    assert "3 samples in 21s" in text(shown, 60)[4]
    calm = replace(EFFECT.since, prompts=replace(EFFECT.since.prompts, count=0))
    shown.set_changes(history(), NOON, replace(EFFECT, since=calm))
    assert text(shown, 60)[8] == "not comparable: none came in 21s since"
    palette = shown._view.palette
    assert all(
        segment.style == palette.muted for line in shown.lines(60)[1:8] for segment in line.segments
    )


def test_without_changes_it_says_so(shown: KnobHistory) -> None:
    assert text(shown, 60) == ["No knob has been changed yet."]
