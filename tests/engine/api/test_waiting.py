"""Why a request waits: a value, whose words are made where they are shown."""

from __future__ import annotations

import string
from dataclasses import replace

import pytest
from pydantic import TypeAdapter

from engine.api.waiting import Cause, Wait, in_words

PLACES = {
    Cause.SLOT: 2,
    Cause.BUDGET: 1,
    Cause.WHOLE_PROMPT: 2,
    Cause.BLOCKS: 3,
    Cause.BATCH: 2,
    Cause.BATCH_OR_WINDOW: 3,
    Cause.BATCH_BEFORE: 2,
    Cause.RUN_BEFORE: 2,
    Cause.PARTIAL_PREFILLS: 2,
    Cause.INTERRUPTION: 4,
    Cause.TIME: 1,
}


@pytest.mark.parametrize("cause", Cause)
def test_each_cause_has_words_for_its_numbers(cause: Cause) -> None:
    numbers = tuple(range(101, 101 + PLACES.get(cause, 0)))
    words = in_words(Wait(cause, numbers, of="chat-7"))
    assert words
    assert not set("{}") & set(words)
    assert all(str(number) in words for number in numbers)
    assert sum(
        word.strip(string.punctuation).isdigit() for word in words.replace("/", " ").split()
    ) == len(numbers)
    assert ("chat-7" in words) == (cause in (Cause.FORK, Cause.POLICY))


def test_those_behind_the_head_wait_for_what_it_waits_for() -> None:
    wait = Wait(Cause.SLOT, (4, 4))
    assert in_words(replace(wait, ahead=3)) == "behind 3: no slot: 4 of 4 are taken"
    assert in_words(Wait(Cause.NEXT, ahead=2)) == "behind 2"
    assert in_words(None) == ""


def test_in_json_it_can_be_read() -> None:
    told = TypeAdapter(Wait).dump_python(Wait(Cause.BLOCKS, (5, 2, 8)), mode="json")
    assert told == {"cause": "blocks", "numbers": [5, 2, 8], "of": "", "ahead": 0}
