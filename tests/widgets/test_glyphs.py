from __future__ import annotations

import math
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from engine.api.lifecycle import FinishReason, RequestState
from tests.widgets.samples import view
from widgets.chat_number import ChatNumber
from widgets.glyphs import ASCII, UNICODE, Glyphs, Mark, state_mark


def characters(glyphs: Glyphs) -> str:
    found = "".join(glyphs.marks.values())
    for field in fields(glyphs):
        value = getattr(glyphs, field.name)
        if isinstance(value, (str, tuple)):
            found += "".join(value)
    return found


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
def test_every_glyph_is_one_cell(glyphs: Glyphs) -> None:
    assert all(cell_len(character) == 1 for character in characters(glyphs))


def test_ascii_is_ascii() -> None:
    assert characters(ASCII).isascii()


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
def test_nothing_is_told_by_colour_alone(glyphs: Glyphs) -> None:
    assert len(set(glyphs.marks.values())) == len(Mark)
    assert set(glyphs.prefill).isdisjoint(glyphs.decode)
    assert glyphs.waste not in glyphs.prefill + glyphs.decode
    assert set(glyphs.frame) != set(glyphs.focused)
    cells = {glyphs.shared, glyphs.reserved, glyphs.pinned, glyphs.cached, glyphs.free}
    assert len(cells | {glyphs.unknown}) == 6
    assert cells.isdisjoint(ChatNumber(n).letter for n in range(1, 36))
    assert cells.isdisjoint(ChatNumber(n, theirs=True).letter for n in range(1, 27))


@pytest.mark.parametrize(
    ("changes", "mark"),
    [
        ({}, Mark.DECODE),
        ({"prefilling": True}, Mark.PREFILL),
        ({"state": RequestState.WAITING}, Mark.QUEUED),
        ({"state": RequestState.PREEMPTED}, Mark.PREEMPTED),
        ({"state": RequestState.FINISHED, "finish_reason": FinishReason.STOP}, Mark.DONE),
        ({"state": RequestState.FINISHED, "finish_reason": FinishReason.LENGTH}, Mark.CUT),
        ({"state": RequestState.FINISHED, "finish_reason": FinishReason.ABORT}, Mark.STOPPED),
        ({"state": RequestState.FINISHED, "finish_reason": FinishReason.ERROR}, Mark.FAILED),
    ],
)
def test_marks_of_states(changes: dict[str, object], mark: Mark) -> None:
    assert state_mark(view(1, **changes)) is mark
    runs = mark in (Mark.DECODE, Mark.PREFILL)
    assert state_mark(view(1, **changes), paused=True) is (Mark.PAUSED if runs else mark)


def test_meters() -> None:
    assert [ASCII.meter(share, 4) for share in (0, 0.5, 1)] == ["....", "##..", "####"]
    assert [ASCII.meter(share, 4) for share in (-1, 7, math.nan)] == ["....", "####", "...."]


def test_control_characters_never_reach_the_terminal() -> None:
    assert UNICODE.fit("\x1b[2J\ntitle\x07") == " [2J title "


def test_punctuation_has_an_ascii_form() -> None:
    assert ASCII.fit("KV×16 · 512→256 … –") == "KVx16 - 512>256 ~ -"


@given(st.text())
def test_fitted_text_is_printable(text: str) -> None:
    assert UNICODE.fit(text).isprintable()
    assert ASCII.fit(text).isascii()
    assert len(ASCII.fit(text)) == len(text)
