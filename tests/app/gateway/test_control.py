from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.gateway.control import PATIENCE_SECONDS, Control, read_control
from engine.api.client import LoadRequest
from engine.api.knobs import KNOB_SPECS, Knobs
from engine.api.snapshot import Snapshot
from engine.serving.host import EngineHost
from tests.support.asking import ask, error_of, read
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_loader import Loader, Turnstile

LINES = {
    '{"show": true}': True,
    ' {"set": {}, "who": "anna"} ': True,
    '{"undo": 3}': True,
    '{"set": null}': True,
    '{"show": true, "undo": true}': False,
    '{"show": true, "more": 1}': False,
    '{"show": true, "who": "anna", "more": 1}': False,
    '{"who": "anna"}': False,
    "{}": False,
    '["show"]': False,
    '"show"': False,
    "show": False,
    '{"show": true': False,
    '{"show": true} please': False,
    '{"say": "show"}': False,
    '{"show": 1' + "0" * 5000 + "}": False,
    "[" * 100_000: False,
    "": False,
}


@pytest.mark.parametrize(("line", "is_one"), LINES.items(), ids=[line[:30] for line in LINES])
def test_only_an_object_of_a_verb_is_a_message(line: str, is_one: bool) -> None:
    message = read_control(line.encode())
    assert message == (json.loads(line) if is_one else None)


def test_what_is_not_utf8_is_no_message() -> None:
    assert read_control(b'{"show": "\xff"}') is None
    assert read_control('{"show": true}'.encode("utf-16")) is None


def test_a_change_is_made_and_shown_with_its_range_and_history() -> None:
    engine = ScriptedEngine()
    control = Control(engine, "stdin")
    engine.clock.now = 1.0
    answer: Any = control.answer({"set": {"policy": "prefill_first", "max_num_seqs": 8}})
    assert answer["ok"] is True
    assert list(answer["knobs"]) == [spec.name for spec in KNOB_SPECS]
    assert answer["knobs"]["max_num_seqs"] == {
        "requested": 8,
        "effective": 8,
        "note": "",
        "allowed": {"low": 1, "high": 32},
        "unit": "sequences",
    }
    assert answer["knobs"]["policy"]["requested"] == "prefill_first"
    assert "prefill_first" in answer["knobs"]["policy"]["allowed"]["choices"]
    assert "alice=2" in answer["knobs"]["user_weights"]["allowed"]["form"]
    engine.clock.now = 3.5
    answer = control.answer({"undo": True, "who": "anna"})
    assert answer["knobs"]["max_num_seqs"]["requested"] == Knobs().max_num_seqs
    before = {"policy": "stall_free", "max_num_seqs": 32}
    after = {"policy": "prefill_first", "max_num_seqs": 8}
    first, second = answer["history"]
    assert (first["who"], first["ago_s"], first["undoes"]) == ("stdin", 2.5, False)
    assert (second["who"], second["ago_s"], second["undoes"]) == ("anna", 0.0, True)
    for entry, old, new in ((first, before, after), (second, after, before)):
        assert entry["changed"] == {
            name: {"before": old[name], "after": new[name]} for name in before
        }
    assert json.loads(json.dumps(control.answer({"show": True}))) == answer


DEEP: Any = []
for _ in range(50_000):
    DEEP = [DEEP]

BAD: dict[str, tuple[object, str, str | None]] = {
    "text": ("show", "a message must be an object with exactly one of set, undo, show", None),
    "none": (None, "a message must be an object with exactly one of set, undo, show", None),
    "no verb": ({"who": "a"}, "exactly one of set, undo, show", None),
    "two verbs": ({"show": True, "undo": True}, "exactly one of set, undo, show", None),
    "more": ({"show": True, "x": 1}, "x is not part of a message; allowed are set, undo,", "x"),
    "undo": ({"undo": False}, "undo is false; it must be true", "undo"),
    "set": ({"set": ["policy"]}, "set is ['policy']; it must be an object of knobs", "set"),
    "deep": ({"set": DEEP}, "set is [[[[[[[...]]]]]]]; it must be an object", "set"),
    "who": ({"show": True, "who": ""}, "who is ''; it must be text of 1 to 100", "who"),
    "long": ({"show": True, "who": "x" * 101}, "it must be text of 1 to 100", "who"),
    "escape": ({"show": True, "who": "\x1b[2J"}, "who is '\\x1b[2J'; it must be", "who"),
    "half": ({"show": True, "who": "\ud800"}, "who is '\\ud800'; it must be", "who"),
    "knob": ({"set": {"\ud800": 1}}, "is not a knob; allowed are policy, order,", "\ud800"),
    "range": ({"set": {"max_num_seqs": 99}}, "max_num_seqs is 99; it must be from", "max_num_seqs"),
    "nan": ({"set": {"ageing": float("nan")}}, "ageing is nan; it must be from", "ageing"),
    "type": ({"set": {"paused": 1}}, "paused is 1; it must be one of true, false", "paused"),
    "null": ({"set": {"paused": None}}, "paused is None; it must be a number, true,", "paused"),
    "nested": ({"set": {"paused": DEEP}}, "it must be a number, true, false or text", "paused"),
    "weights": ({"set": {"user_weights": "\x07=1"}}, "of printable characters", "user_weights"),
    "weights too long": (
        {"set": {"user_weights": "a" * 4095 + "=1"}},
        "at most 4096",
        "user_weights",
    ),
    "module": (
        {"set": {"policy": "json:dumps"}},
        "policy is 'json:dumps'; it must be one",
        "policy",
    ),
    "one of two": ({"set": {"paused": True, "order": "x"}}, "order is 'x'; it must be", "order"),
}


@pytest.mark.parametrize(("message", "part", "param"), BAD.values(), ids=BAD)
def test_of_a_bad_message_nothing_is_done(message: object, part: str, param: str | None) -> None:
    engine = ScriptedEngine()
    answer: Any = Control(engine, "stdin").answer(message)
    assert answer["ok"] is False
    assert set(answer["error"]) == {"type", "message", "param"}
    assert part in answer["error"]["message"]
    assert len(answer["error"]["message"]) < 500
    assert answer["error"]["param"] == param
    json.dumps(answer)
    after = engine.snapshot()
    assert after is not None
    assert after.knob_history == ()
    assert {s.name: s.requested for s in after.knobs} == {
        s.name: getattr(Knobs(), s.name) for s in KNOB_SPECS
    }


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from([spec.name for spec in KNOB_SPECS]) | st.text()


@given(
    JSON
    | st.fixed_dictionaries({}, optional={"set": st.dictionaries(NAMES, JSON), "who": JSON})
    | st.fixed_dictionaries({}, optional={"undo": JSON, "show": JSON})
)
def test_whatever_comes_is_answered_in_json(message: object) -> None:
    engine = ScriptedEngine()
    control = Control(engine, "stdin", sleep=lambda _: None)
    answer: Any = control.answer(message)
    json.dumps(answer)
    shown: Any = control.answer({"show": True})
    assert bool(shown["history"]) <= answer["ok"]


class Late(ScriptedEngine):
    """Its snapshots are those of before, until it was waited for some time."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.waits: list[float] = []
        self._looks = looks
        self._old = super().snapshot()

    def snapshot(self) -> Snapshot | None:
        return super().snapshot() if len(self.waits) >= self._looks else self._old

    def now_(self) -> float:
        return sum(self.waits)


def test_an_answer_stays_small_whatever_was_set_how_often() -> None:
    """Twelve changes of 90 kB made one that brokers refuse, and those of MQTT 3.1.1 disconnect."""
    engine = ScriptedEngine()
    control = Control(engine, "stdin")
    for n in range(40):
        users = ",".join(f"user{user}={n + 1}" for user in range(300))
        engine.set_knobs({"user_weights": users, "max_num_seqs": n % 32 + 1}, "screen")
    answer: Any = control.answer({"show": True})
    assert len(json.dumps(answer)) < 32_768
    assert len(answer["history"]) == 20
    changed = answer["history"][-1]["changed"]
    assert changed["max_num_seqs"] == {"before": 7, "after": 8}
    after = changed["user_weights"]["after"]
    assert (len(after), after[:8], after[-8:]) == (100, "user0=40", "er299=40")
    weights = answer["knobs"]["user_weights"]["requested"]
    assert weights == ",".join(f"user{user}=40" for user in range(300))


def test_a_history_of_large_changes_is_cut_short() -> None:
    engine = ScriptedEngine()
    for n in range(20):
        engine.set_knobs({"max_num_seqs": n + 1}, "w" * 2_000)
    answer: Any = Control(engine, "stdin").answer({"show": True})
    assert len(json.dumps(answer["history"])) <= 16_384
    assert [c["changed"]["max_num_seqs"]["after"] for c in answer["history"]] == [*range(14, 21)]


@pytest.mark.parametrize("message", [{"set": {"max_num_seqs": 8}}, {"set": {}}, {"show": True}])
def test_the_engine_is_waited_for(message: Mapping[str, object]) -> None:
    engine = Late(3)
    control = Control(engine, "stdin", clock=engine.now_, sleep=engine.waits.append)
    answer: Any = control.answer(message)
    assert len(engine.waits) == 3
    wanted = 8 if message == {"set": {"max_num_seqs": 8}} else 32
    assert answer["knobs"]["max_num_seqs"]["requested"] == wanted


def test_an_engine_that_stands_still_is_not_waited_for_without_end() -> None:
    engine = Late(1_000_000)
    control = Control(engine, "stdin", clock=engine.now_, sleep=engine.waits.append)
    answer: Any = control.answer({"set": {"max_num_seqs": 8}})
    assert answer["ok"] is True
    assert PATIENCE_SECONDS <= sum(engine.waits) < PATIENCE_SECONDS + 0.1


def test_without_a_model_there_are_no_knobs() -> None:
    answer: Any = Control(ScriptedEngine(loaded=False), "stdin").answer({"show": True})
    assert answer["error"] == {
        "type": "unavailable_error",
        "message": "no model is loaded",
        "param": None,
    }


@pytest.mark.parametrize("policy", ["orca", "stall_free"])
def test_an_idle_engine_shows_what_was_set(policy: str) -> None:
    host = EngineHost(Loader())
    try:
        host.load(LoadRequest("a", knobs={"prefill_chunk": 5}))
        read(ask(host))
        control = Control(host, "stdin")
        answer: Any = control.answer({"set": {"policy": policy}})
        knob = answer["knobs"]["policy"]
        assert (knob["requested"], knob["effective"], knob["note"]) == (policy, policy, "")
        ignored = "ignored by orca" if policy == "orca" else ""
        assert answer["knobs"]["prefill_chunk"]["requested"] == 5
        assert answer["knobs"]["prefill_chunk"]["note"] == ignored
        assert len(answer["history"]) == (policy == "orca")
        for message in ({"undo": True}, {"undo": True}, {"show": True}):
            answer = control.answer(message)
            assert answer["knobs"]["policy"]["effective"] == "stall_free"
    finally:
        host.shutdown()


def test_a_busy_engine_shows_it_when_it_has_taken_it_up() -> None:
    turnstile = Turnstile()
    host = EngineHost(Loader(before_step=turnstile))
    streams = []
    looks = 0

    def let_one_step_end(_seconds: float) -> None:
        nonlocal looks
        looks += 1
        turnstile.let_one()
        turnstile.wait()

    try:
        host.load(LoadRequest("a"))
        streams = [ask(host, max_tokens=50) for _ in range(2)]
        turnstile.wait()
        error_of(ask(host, ""))  # It is read behind the two, which have reached the engine.
        while (snapshot := host.snapshot()) is None or snapshot.num_running < 2:
            let_one_step_end(0.0)
        looks = 0
        control = Control(host, "stdin", sleep=let_one_step_end)
        answer: Any = control.answer({"set": {"max_num_seqs": 1}, "who": "anna"})
        assert looks in (1, 2)
        knob = answer["knobs"]["max_num_seqs"]
        assert (knob["requested"], knob["effective"]) == (1, 2)
        assert knob["note"] == "1 more than requested still run"
        assert [entry["who"] for entry in answer["history"]] == ["anna"]
    finally:
        turnstile.open()
        for stream in streams:
            read(stream)
        host.shutdown()
