"""Transcripts: what who watches a chat of MQTT on the screen sees of it."""

from __future__ import annotations

from engine.api.lifecycle import FinishReason
from engine.api.tools import ToolCall
from tests.support.mqtt_asking import finish
from tests.support.mqtt_peer import Peer
from tests.support.mqtt_serving import Serving


def test_who_watches_sees_the_chat_as_it_stands(served: Serving, alice: Peer) -> None:
    told = [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "second"},
    ]
    alice.ask("1", messages=told)
    served.accepted(1)
    key = "default/alice/phone/1"
    served.engine.advance(2)
    transcript = served.gateway.transcript
    served.until(lambda: (found := transcript(key)) and found.messages[-1].content)
    running = transcript(key)
    assert running is not None
    assert running.request_id == key
    assert [m.content for m in running.messages[:3]] == ["first", "yes", "second"]
    assert running.conversation.user == "alice"
    # So the chat that is opened is the one that the request is numbered by.
    assert served.engine.submissions[0].origin.conversation == running.conversation.id
    assert running.num_prompt_tokens == len(served.engine.prompts[key])
    assert running.num_output_tokens > 0
    finish(served, alice, "1")
    ended = transcript(key)
    assert ended is not None
    assert ended.version > running.version
    assert ended.request_id is None
    assert (ended.num_prompt_tokens, ended.num_output_tokens) == (0, 0)
    assert ended.messages[-1].finish_reason is FinishReason.STOP
    assert transcript("nobody/knows/this/one") is None


def test_a_watched_session_goes_on(served: Serving, alice: Peer) -> None:
    for number in "12":
        alice.ask(number, f"turn {number}", session_id="s")
        served.accepted(int(number))
        finish(served, alice, number)
    first = served.gateway.transcript("default/alice/phone/1")
    assert first is not None
    assert [m.content for m in first.messages if m.role == "user"] == ["turn 1", "turn 2"]


def test_who_watches_sees_what_was_thought_and_which_tools_were_called(
    served: Serving, alice: Peer
) -> None:
    function = {"name": "clock", "arguments": '{"zone": 1}'}
    calls = [{"id": "c1", "type": "function", "function": function}]
    told = [
        {"role": "user", "content": "When?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": calls,
            "reasoning_content": "I look.",
        },
        {"role": "tool", "content": "noon", "tool_call_id": "c1", "name": "clock"},
        {"role": "user", "content": "So?"},
    ]
    alice.ask("1", messages=told)
    served.accepted(1)
    found = served.gateway.transcript("default/alice/phone/1")
    assert found is not None
    called, answer = found.messages[1:3]
    assert called.thinking == "I look."
    assert called.tool_use is not None
    assert called.tool_use.calls == (ToolCall("clock", '{"zone": 1}', "c1"),)
    assert (answer.tool_call_id, answer.name, answer.content) == ("c1", "clock", "noon")
