from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.widgets.samples import chats, view, waiting
from widgets.chat_number import ChatName, ChatNumber
from widgets.panels.chat_row import YOU, ChatRow
from widgets.panels.session_columns import (
    CURSOR_WIDTH,
    FIGURES,
    ID_WIDTH,
    MAX_TITLE_WIDTH,
    SORTS,
    SessionColumns,
    sort_key,
)


@pytest.mark.parametrize(
    ("width", "figures", "source", "state"),
    [
        (20, "", False, 1),
        (37, "tok", False, 11),
        (43, "TTFT tok", False, 11),
        (49, "TTFT TPOT tok", False, 11),
        (55, "queue TTFT TPOT tok", False, 11),
        (60, "queue TTFT TPOT tok blk", False, 11),
        (70, "queue TTFT TPOT tok blk", False, 11),
        (71, "queue TTFT TPOT p99 tok blk", False, 11),
        (77, "queue TTFT TPOT p99 tok blk", False, 11),
        (78, "queue TTFT TPOT p99 tok blk", True, 11),
    ],
)
def test_what_tells_least_leaves_first(width: int, figures: str, source: bool, state: int) -> None:
    columns = SessionColumns.within(width)
    assert " ".join(figure.name for figure in columns.figures) == figures
    assert bool(columns.source) == source
    assert columns.state == state


def test_a_column_of_less_weight_leaves_the_beginning_of_a_title() -> None:
    assert SessionColumns.within(69).title == 20  # beside a chat on 160 columns
    assert all(SessionColumns.within(width).title >= 16 for width in range(71, 251))


def test_a_wide_table_has_a_column_for_reasons() -> None:
    assert SessionColumns.within(110).note == 0
    wide = SessionColumns.within(160)
    assert wide.title == MAX_TITLE_WIDTH
    assert wide.note > 50


@given(st.integers(24, 250))
def test_columns_fill_the_width_and_no_more(width: int) -> None:
    columns = SessionColumns.within(width)
    *_, (_, start, length) = columns.spans()
    note = columns.note + 1 if columns.note else 0
    assert start + length + note == width
    assert columns.title >= 10
    assert CURSOR_WIDTH + ID_WIDTH + columns.title + 1 + columns.state <= width


@given(st.integers(1, 250))
def test_columns_do_not_overlap(width: int) -> None:
    spans = list(SessionColumns.within(width).spans())
    for (_, start, length), (_, following, _) in pairwise(spans):
        assert start + length < following


def test_every_column_sorts() -> None:
    assert set(SORTS) >= {"ID", "title", "src", "state", *(figure.name for figure in FIGURES)}
    quick, slow, none = chats([view(1, ttft=0.1), view(2, ttft=2.0), waiting(3, 0.1, "")])
    by_ttft = sorted([none, slow, quick], key=lambda row: sort_key(row, "TTFT"))
    assert by_ttft == [quick, slow, none]
    idle = ChatRow("k", ChatName(ChatNumber(3), "Rome"), YOU)
    assert sort_key(idle, "TTFT")[0]  # no value
    assert sort_key(idle, "title") == (False, "rome", 0)
    assert sort_key(idle, "src") == (False, "you", 0)
    theirs = ChatRow("m", ChatName(ChatNumber(1, theirs=True), "Ulm"), "mqtt")
    ten = ChatRow("t", ChatName(ChatNumber(10), "Bonn"), YOU)
    assert sorted([theirs, ten, idle], key=lambda row: sort_key(row, "ID")) == [idle, ten, theirs]
