"""Tools over MQTT: stated by a client, called by the model, and what they gave, told again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.api.client import ChatMessage
from engine.api.tools import ToolCall
from tests.support.brokers import Mosquitto
from tests.support.mqtt_asking import finish
from tests.support.mqtt_peer import Peer
from tests.support.mqtt_serving import serving
from tests.support.scripted_engine import ScriptedEngine
from tests.support.tool_calling import TOOLS

TEXT = 'Let me see. <tool_call>weather {"days": 2}</tool_call>'
FUNCTION = {"name": "weather", "arguments": '{"days": 2}'}
CALL = ToolCall("weather", '{"days": 2}')
ASKED = {"role": "user", "content": "How will it be?"}
GIVEN: list[dict[str, Any]] = [
    {"role": "tool", "content": "", "tool_call_id": "c1"},
    {"role": "tool", "content": "Rain", "name": "weather"},
]


def engine() -> ScriptedEngine:
    return ScriptedEngine({"How will it be?": TEXT, "Rain": "Wet"})


def test_calls_have_a_field_of_their_own_and_are_answered(
    broker: Mosquitto, alice: Peer, tmp_path: Path
) -> None:
    with serving(broker.port, tmp_path, engine=engine()) as served:
        alice.ask("1", messages=[ASKED], tools=list(TOOLS))
        served.accepted(1)
        final = finish(served, alice, "1")
        deltas = [r for r in alice.replies("1") if r["type"] == "delta"]
        assert "".join(d["choices"][0]["delta"]["content"] for d in deltas) == TEXT == final["text"]
        assert final["tool_calls"] == [{"id": None, "type": "function", "function": FUNCTION}]
        assert final["finish_reason"] == "stop"
        assert served.engine.submissions[0].sampling == {"tools": list(TOOLS)}

        called = {"role": "assistant", "content": None, "tool_calls": final["tool_calls"]}
        called["reasoning_content"] = "They ask."
        alice.ask("2", messages=[ASKED, called, *GIVEN])
        served.accepted(2)
        assert finish(served, alice, "2")["tool_calls"] is None
        assert served.engine.submissions[1].messages == (
            ChatMessage("user", "How will it be?"),
            ChatMessage("assistant", "", "They ask.", (CALL,)),
            ChatMessage("tool", "", tool_call_id="c1"),
            ChatMessage("tool", "Rain", name="weather"),
        )


def test_a_session_does_not_begin_with_what_a_tool_gave(
    broker: Mosquitto, alice: Peer, tmp_path: Path
) -> None:
    with serving(broker.port, tmp_path) as served:
        alice.ask("1", messages=GIVEN, session_id="s")
        error = alice.end("1")["error"]
        assert error["code"] == 400
        assert "has no reply that a tool could answer" in error["message"]
        assert not served.engine.submissions


def test_a_session_is_gone_on_with_by_what_tools_gave(
    broker: Mosquitto, alice: Peer, tmp_path: Path
) -> None:
    with serving(broker.port, tmp_path, engine=engine()) as served:
        alice.ask("1", messages=[ASKED], session_id="s", tools=list(TOOLS))
        served.accepted(1)
        finish(served, alice, "1")
    with serving(broker.port, tmp_path, engine=engine()) as served:
        alice.ask("2", messages=GIVEN, session_id="s", tools=list(TOOLS))
        served.accepted(1)
        assert finish(served, alice, "2")["text"] == "Wet"
        alice.ask("3", "And then?", session_id="s")
        served.accepted(2)
        finish(served, alice, "3")
        first, second = served.engine.submissions
        assert first.messages == (
            ChatMessage("user", "How will it be?"),
            ChatMessage("assistant", "Let me see.", tool_calls=(CALL,)),
            ChatMessage("tool", "", tool_call_id="c1"),
            ChatMessage("tool", "Rain", name="weather"),
        )
        assert first.context is not None
        assert first.context.num_messages == 2
        assert second.messages[:4] == first.messages
        assert [m.role for m in second.messages[4:]] == ["assistant", "user"]
        assert second.context is not None
        assert second.context.num_messages == 5
