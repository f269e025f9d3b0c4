from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.client import topic_matches_sub

from app.gateway.mqtt.protocol.topics import EVERY, MAX_LEVEL, Caller, Topics, check_level

TOPICS = Topics("default", "box")
LEVELS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6).filter(
    lambda text: text.isprintable() and not set(text) & set(" /+#")
)


@given(LEVELS, LEVELS, LEVELS, LEVELS, LEVELS)
def test_what_a_caller_publishes_to_names_them(
    pool: str, node: str, user: str, client: str, request_id: str
) -> None:
    topics = Topics(pool, node)
    caller = Caller(pool, user, client, request_id)
    assert topics.parse(caller.request_topic) == caller
    assert topics.parse(caller.cancel_topic) == Caller(pool, user, client, request_id, True)
    assert topics.parse(caller.reply_topic) is None
    assert Caller.of(caller.key) == caller
    assert caller.reply_topic == caller.branch + request_id
    assert topic_matches_sub(topics.requests, caller.request_topic)
    assert topic_matches_sub(topics.cancels, caller.cancel_topic)
    assert topic_matches_sub(topics.all_status, topics.status)
    assert topics.is_status(topics.status)
    assert not any(map(topics.is_status, (topics.metrics, topics.knobs, caller.request_topic)))


def test_a_cancel_may_be_of_all_requests() -> None:
    caller = TOPICS.parse("llm/v1/default/cancel/alice/phone/*")
    assert caller is not None
    assert (caller.request_id, caller.is_cancel) == (EVERY, True)


FOREIGN = [
    "",
    "llm/v1/default/req",
    "llm/v1/default/req/alice/phone",
    "llm/v1/default/req/alice/phone/7/8",
    "llm/v1/default/req/alice/phone/",
    "llm/v1/default/req//phone/7",
    "llm/v1/default/req/alice/phone/+",
    "llm/v1/default/req/alice/#/7",
    "llm/v1/default/req/a b/phone/7",
    "llm/v1/default/req/alice/phone/\x07",
    "llm/v1/default/req/alice/\u2028/7",
    f"llm/v1/default/req/alice/phone/{'x' * (MAX_LEVEL + 1)}",
    "llm/v1/default/rep/alice/phone/7",
    "llm/v1/default/REQ/alice/phone/7",
    "llm/v1/default2/req/alice/phone/7",
    "llm/v1/other/req/alice/phone/7",
    "llm/v2/default/req/alice/phone/7",
    "x/llm/v1/default/req/alice/phone/7",
    "default/req/alice/phone/7",
    "req/alice/phone/7",
    TOPICS.status,
    TOPICS.knobs_set,
]


@pytest.mark.parametrize("topic", FOREIGN)
def test_any_other_topic_names_nobody(topic: str) -> None:
    assert TOPICS.parse(topic) is None


@given(st.text() | LEVELS.map(lambda level: f"llm/v1/default/req/{level}"))
def test_whatever_the_topic_is_it_is_read(topic: str) -> None:
    caller = TOPICS.parse(topic)
    assert caller is None or topic in (caller.request_topic, caller.cancel_topic)


BAD_LEVELS = ["", " ", "a b", "a/b", "+", "#", "a#", "\n", "\x7f", "\u200b", "\ud800", "x" * 129]


@pytest.mark.parametrize("level", BAD_LEVELS)
def test_what_is_no_level_is_named(level: str) -> None:
    with pytest.raises(ValueError, match=r"^node is .*; it must be 1 to 128 printable") as told:
        check_level("node", level)
    assert str(told.value).isprintable()
    assert len(str(told.value)) < 150
    for place in range(4):
        parts = ["p", "u", "c", "r"]
        parts[place] = level
        with pytest.raises(ValueError, match=r"it must be 1 to 128 printable"):
            Caller(*parts)
    for pool, node in ((level, "box"), ("default", level)):
        with pytest.raises(ValueError, match="it must be 1 to 128 printable"):
            Topics(pool, node)


@pytest.mark.parametrize("level", ["a", "x" * MAX_LEVEL, "ünï", "$SYS", "*", "a.b-c_d@e:f", "名"])
def test_a_level_may_be_any_word(level: str) -> None:
    assert check_level("node", level) == level
