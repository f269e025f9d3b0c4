from __future__ import annotations

import math
from dataclasses import replace

from engine.api.telemetry import Distribution
from tests.widgets.samples import EFFECT


def test_before_and_since_in_a_line() -> None:
    assert EFFECT.line == (
        "tok/s 310→402 · TTFT p50 190ms→240ms · TPOT p50 21ms→– · batch 6.1→8 · KV waste 12%→3%"
    )


def test_nothing_is_said_while_nothing_has_run_since() -> None:
    none = Distribution.of(())
    idle = replace(EFFECT.since, throughput=math.nan, ttft=none)
    assert replace(EFFECT, since=idle).line == ""


def test_what_is_known_of_neither_side_is_left_out() -> None:
    before = replace(EFFECT.before, tpot=Distribution.of(()))
    assert "TPOT" not in replace(EFFECT, before=before).line


def test_figures_that_come_from_samples_say_of_how_many() -> None:
    assert [(row.name, row.samples) for row in EFFECT.since.rows()] == [
        ("tok/s", None),
        ("TTFT p50", 3),
        ("TPOT p50", 0),
        ("batch", None),
        ("KV waste", None),
    ]
