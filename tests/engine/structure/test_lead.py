"""Thinking is free; the structure binds what is said after it."""

from __future__ import annotations

import pytest

from engine.structure.lead import NO_LEAD, Lead, behind_channels, behind_tags
from tests.support.structures import (
    CHANNEL,
    CLOSE,
    END,
    ENDS,
    LONGER,
    MESSAGE,
    NOTHING,
    OPEN,
    SIZE,
    SPECIAL,
    START,
    allowed,
    grammar,
    ids_of,
)

CHOICE = {"choice": ["yes", "no"]}
FREE = set(range(SIZE)) - {*ENDS, NOTHING, *SPECIAL}
BEGINS = {*ids_of("yn"), LONGER["yes"]}
AS_TEXT = ("<think>", "</think>", None, None)
AS_TOKENS = ("[T]", "[/T]", OPEN, CLOSE)


def after(lead: Lead, *token_ids: int) -> set[int]:
    return allowed(grammar(CHOICE, lead).matcher(token_ids))


def test_without_thinking_the_first_token_is_bound() -> None:
    assert after(NO_LEAD) == BEGINS


@pytest.mark.parametrize(
    ("tags", "open_id", "close_id"),
    [(AS_TEXT, LONGER["<think>"], LONGER["</think>"]), (AS_TOKENS, OPEN, CLOSE)],
)
class TestTags:
    def test_thinking_is_free(
        self, tags: tuple[str, str, int | None, int | None], open_id: int, close_id: int
    ) -> None:
        lead = behind_tags(*tags, is_open=True)
        free = FREE | {close_id}
        for thought in ("", "Hm", "is it </thin> or <b>{", "[/T"):
            assert after(lead, *ids_of(thought)) == free, thought

    def test_what_is_said_then_is_bound(
        self, tags: tuple[str, str, int | None, int | None], open_id: int, close_id: int
    ) -> None:
        lead = behind_tags(*tags, is_open=True)
        begins = BEGINS | {ord("\n")}
        assert after(lead, *ids_of("Hm."), close_id) == begins
        assert after(lead, close_id) == begins
        assert after(lead, close_id, *ids_of("\n\n")) == begins
        assert after(lead, *ids_of("Hm."), close_id, *ids_of("\n\nn")) == {ord("o")}
        assert after(lead, close_id, *ids_of("\n\nno")) == {*ENDS}

    def test_a_reply_may_think_or_not(
        self, tags: tuple[str, str, int | None, int | None], open_id: int, close_id: int
    ) -> None:
        lead = behind_tags(*tags, is_open=False)
        assert BEGINS | {open_id} <= after(lead) <= BEGINS | {open_id, ord("<")}
        assert after(lead, *ids_of("no")) == {*ENDS}
        assert after(lead, open_id) == FREE | {close_id}
        assert after(lead, open_id, close_id, *ids_of("ye")) == {ord("s")}


def test_a_tag_may_be_cut_anywhere_and_what_is_behind_it_is_bound() -> None:
    lead = behind_tags(*AS_TEXT, is_open=True)
    cut = after(lead, *ids_of("Hm </think"))
    assert {ord(">"), LONGER[">y"]} <= cut
    assert LONGER["><"] not in cut
    assert after(lead, *ids_of("Hm </think"), LONGER[">y"]) == {ord("e")}
    assert after(lead, *ids_of("Hm </thin"), LONGER["><"]) == FREE


def test_only_what_is_said_on_the_last_channel_is_bound() -> None:
    lead = behind_channels(START, CHANNEL, MESSAGE, END)
    thinks = [CHANNEL, *ids_of("analysis"), MESSAGE]
    turn = [*thinks, *ids_of("Hm"), END, START, *ids_of("assistant")]
    final = [CHANNEL, *ids_of("final"), MESSAGE]
    assert after(lead) == {CHANNEL}
    assert after(lead, CHANNEL) == set(ids_of("af"))
    assert after(lead, *thinks) == FREE | {END}
    assert after(lead, *turn) == {CHANNEL}
    assert after(lead, *turn, *turn) == {CHANNEL}
    assert after(lead, *final) == BEGINS
    assert after(lead, *turn, *final, *ids_of("no")) == {*ENDS}
