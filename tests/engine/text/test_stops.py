from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.text.stops import StopMatcher

letters = st.text("ab", max_size=4) | st.text("abc", max_size=2)
stop_lists = st.lists(st.text("abc", min_size=1, max_size=6), max_size=4)


def naive(pieces: list[str], stops: list[str], min_tokens: int) -> tuple[str, int | None]:
    """Text shown and number of the ending token, from the full text character by character."""
    text = ""
    for number, piece in enumerate(pieces, start=1):
        for char in piece:
            text += char
            ended = [stop for stop in stops if text.endswith(stop)]
            if ended and number >= min_tokens:
                return text.removesuffix(max(ended, key=len)), number
    return text, None


@settings(max_examples=400, deadline=None)
@given(pieces=st.lists(letters, max_size=14), stops=stop_lists, min_tokens=st.integers(0, 8))
def test_equals_a_search_of_the_whole_text(
    pieces: list[str], stops: list[str], min_tokens: int
) -> None:
    matcher = StopMatcher(stops, min_tokens)
    expected, stopped_at = naive(pieces, stops, min_tokens)
    shown, text = "", ""
    for number, piece in enumerate(pieces, start=1):
        text += piece
        shown += matcher.push(piece, number)
        if matcher.stopped_at is None:
            # Held back is exactly the longest end of the text that may begin a stop string.
            held = next(
                text[i:]
                for i in range(len(text) + 1)
                if i == len(text) or any(s.startswith(text[i:]) and s != text[i:] for s in stops)
            )
            assert shown + held == text
            assert len(held) <= max((len(stop) for stop in stops), default=1) - 1
    shown += matcher.flush()
    assert shown == expected
    assert matcher.stopped_at == stopped_at
    if stopped_at is None:
        assert matcher.stopped_by is None
    else:
        assert matcher.stopped_by in stops
        assert text.startswith(shown + matcher.stopped_by)


def test_replies_share_the_tables_of_their_stops() -> None:
    one, other = (StopMatcher(["abab", "b"]) for _ in range(2))
    for mine, its in zip(one._patterns, other._patterns, strict=True):
        assert mine._borders is its._borders
    assert one.push("ab", 1) == "a"
    assert other.push("aba", 1) == "a"


@pytest.mark.parametrize(
    ("min_tokens", "shown", "stopped_at"),
    [
        (0, "one ", 2),
        (2, "one ", 2),  # the stop string ends in token 2
        (3, "one STOP two ", 4),  # begins in token 3 and ends in 4
        (4, "one STOP two ", 4),
        (5, "one STOP two STOP", None),
    ],
)
def test_min_tokens_is_the_first_token_that_a_stop_may_end_in(
    min_tokens: int, shown: str, stopped_at: int | None
) -> None:
    matcher = StopMatcher(["STOP"], min_tokens)
    pieces = ["one ST", "OP two", " STO", "P"]
    text = "".join(matcher.push(piece, i) for i, piece in enumerate(pieces, start=1))
    assert (text + matcher.flush(), matcher.stopped_at) == (shown, stopped_at)


def test_first_complete_stop_wins_then_the_longest() -> None:
    matcher = StopMatcher(["bcd", "c", "abc"])
    assert matcher.push("xabcd", 1) == "x"
    assert (matcher.stopped_at, matcher.stopped_by) == (1, "abc")


def test_a_stop_that_overlaps_a_suppressed_one_counts() -> None:
    matcher = StopMatcher(["aa"], min_tokens=3)
    assert [matcher.push("a", number) for number in (1, 2, 3)] == ["", "a", ""]
    assert matcher.stopped_at == 3


def test_a_hostile_stop_string_costs_linear_time() -> None:
    # Comparing every beginning with every end would be 10^10 characters.
    length = 50_000
    matcher = StopMatcher(["a" * length + "b"])
    shown = "".join(matcher.push("aaaa", number) for number in range(1, length // 2))
    assert shown + matcher.flush() == "aaaa" * (length // 2 - 1)
    assert matcher.stopped_at is None
