from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.knobs import KnobChange, Knobs
from tests.widgets import samples
from widgets import figures


@pytest.mark.parametrize(
    ("write", "number", "text"),
    [
        (figures.count, 1284, "1,284"),
        (figures.compact, 47, "47"),
        (figures.compact, 6.125, "6.1"),
        (figures.compact, 9.96, "10"),
        (figures.compact, 999.6, "1.0k"),
        (figures.compact, 9800, "9.8k"),
        (figures.compact, 9960, "10k"),
        (figures.compact, 1_284_000, "1.3M"),
        (figures.duration, 0.0, "0.0ms"),
        (figures.duration, 0.0004, "0.4ms"),
        (figures.duration, 0.003, "3.0ms"),
        (figures.duration, 0.0096, "9.6ms"),
        (figures.duration, 0.00996, "10ms"),
        (figures.duration, 0.0118, "12ms"),
        (figures.duration, 0.184, "184ms"),
        (figures.duration, 0.9996, "1.00s"),
        (figures.duration, 1.234, "1.23s"),
        (figures.duration, 9.996, "10.0s"),
        (figures.duration, 13.785, "13.8s"),
        (figures.duration, 59.96, "1m"),
        (figures.duration, 184.0, "3m04s"),
        (figures.duration, 754.0, "12m"),
        (figures.duration, 8040.0, "2h14m"),
        (figures.duration, 80400.0, "22h"),
        (figures.duration, 804000.0, "9d"),
        (figures.lasting, 0.7, "0s"),
        (figures.lasting, 59.97, "59s"),
        (figures.lasting, 184.9, "3m04s"),
        (figures.percent, 0.0, "0%"),
        (figures.percent, 0.004, "<1%"),
        (figures.percent, 0.714, "71%"),
        (figures.percent, 0.999, "99%"),
        (figures.percent, 1.4, "140%"),
        (figures.fine_percent, 0.9894, "98.9%"),
        (figures.fine_percent, 0.99999, "99.9%"),
        (figures.fine_percent, 1.0, "100%"),
        (figures.fine_percent, 0.98, "98%"),
        (figures.size, 999, "999 B"),
        (figures.size, 1000, "1 KiB"),
        (figures.size, 641_728_512, "612 MiB"),
        (figures.size, 33_500_000_000, "31.2 GiB"),
    ],
)
def test_numbers(write: Callable[[float], str], number: float, text: str) -> None:
    assert write(number) == text


@pytest.mark.parametrize(
    "write",
    [figures.compact, figures.duration, figures.lasting, figures.percent, figures.size],
)
@pytest.mark.parametrize("nothing", [None, math.nan, math.inf])
def test_what_is_not_known_is_a_dash(
    write: Callable[[float | None], str], nothing: float | None
) -> None:
    assert write(nothing) == "–"


def test_part_of_a_size_takes_unit_and_decimal_of_the_whole() -> None:
    assert figures.size_of(123_000_000, 400_000_000) == "117/381 MiB"
    assert figures.size_of(6 << 30, 47 << 29) == "6.0/23.5 GiB"
    assert figures.size_of(0, 85_520_809_984) == "0.0/79.6 GiB"
    assert figures.size_of(11 << 29, 16 << 30) == "5.5/16 GiB"
    assert figures.size_of(0, 16 << 30) == "0/16 GiB"
    assert figures.size_of(None, 85_520_809_984) == "–"


@given(st.floats(0, 999e9))
def test_compact_numbers_fit_a_column_of_four(number: float) -> None:
    assert len(figures.compact(number)) <= 4


@given(st.floats(0, 8e8))
def test_times_fit_a_column_of_five(seconds: float) -> None:
    assert len(figures.duration(seconds)) <= 5


def test_time_of_day() -> None:
    assert figures.time_of_day(samples.NOON) == "22:13:20"


def test_a_time_of_another_day_has_its_day() -> None:
    today = date(2023, 11, 14)
    hour, midnight = 3600.0, samples.NOON - (22 * 60 + 13) * 60 - 20
    for seconds, shown in (
        (samples.NOON, "22:13"),
        (midnight, "00:00"),
        (midnight - 1, "13 Nov 23:59"),
        (midnight + 24 * hour, "15 Nov 00:00"),
        (midnight - 365 * 24 * hour, "14 Nov 2022 00:00"),
    ):
        assert figures.day_and_time(seconds, today) == shown


def test_knob_changes() -> None:
    assert figures.change_text(samples.change()) == "max_num_batched_tokens 512→256"
    weights = replace(Knobs(), user_weights="alice=2")
    change = KnobChange(1.0, 1, "you", Knobs(), weights)
    assert figures.change_text(change) == "user_weights –→alice=2"
    assert [figures.setting(value) for value in (True, 0.01, "x")] == ["true", "0.01", "x"]


def test_one_of_a_thing_has_the_word_for_one() -> None:
    named = [figures.counted(number, "chat") for number in (0, 1, 2, 1284)]
    assert named == ["0 chats", "1 chat", "2 chats", "1,284 chats"]
