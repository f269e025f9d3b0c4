from __future__ import annotations

import io
import json
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from app.gateway import stdio
from app.gateway.stdio import StdioGateway
from app.system.engine_crash import EngineCrashError
from engine.api.client import ChatMessage, LoadRequest, Submission
from engine.api.knobs import Knobs
from engine.api.lifecycle import FinishReason, Timings
from engine.api.logprobs import Candidate, OutputToken
from engine.api.stream import Delta, Finish, RequestStream, Usage
from engine.api.tools import ToolCall
from engine.serving.host import EngineHost
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_loader import Loader

REPLIES = {"hi": "Hello you", "one": "1", "uml": "Grüße \N{SNOWMAN}", "poem": "a b\nc d"}


class Run:
    """A gateway over a scripted engine that advances as it is read from."""

    def __init__(self, source: bytes | stdio.Source, engine: ScriptedEngine | None = None) -> None:
        self.engine = engine or ScriptedEngine(REPLIES, drives_itself=True)
        self.source = io.BytesIO(source) if isinstance(source, bytes) else source
        self.writes: list[bytes] = []
        self.complaints: list[str] = []

    def write(self, data: bytes, /) -> None:
        self.writes.append(data)

    def flush(self) -> None:
        """Every write is seen at once."""

    @property
    def output(self) -> str:
        return b"".join(self.writes).decode()

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.output.splitlines()]

    def gateway(self, **options: object) -> StdioGateway:
        complain = self.complaints.append
        return StdioGateway(self.engine, self.source, self, complain, **options)  # type: ignore[arg-type]


def test_each_line_is_a_turn_of_one_conversation() -> None:
    run = Run(b"hi\none\r\numl")
    assert run.gateway(system="Be brief.", sampling={"seed": 1}).converse()
    assert run.output == "Hello you\n1\nGrüße \N{SNOWMAN}\n"
    assert run.complaints == []
    last = run.engine.submissions[-1]
    assert [m.content for m in last.messages] == ["Be brief.", "hi", "Hello you", "one", "1", "uml"]
    assert last.sampling == {"seed": 1}
    assert last.origin.source == "stdin"
    assert last.context is not None


def test_the_reply_is_written_as_it_comes() -> None:
    run = Run(b"poem\n")
    run.gateway().converse()
    assert run.writes == [b"a", b" b", b"\nc", b" d", b"\n"]


@pytest.mark.parametrize("tells", [True, False], ids=["ended", "hangs"])
@pytest.mark.parametrize("each", [True, False], ids=["each", "one"])
def test_an_engine_that_crashes_ends_it(
    tells: bool, each: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line is told of, and no more are taken."""

    class Engine(ScriptedEngine):
        def submit(
            self, submission: Submission, wake: Callable[[], None] | None = None
        ) -> RequestStream:
            stream = super().submit(submission, wake)
            self.crash("the text thread failed: Panic: a bug", tells=tells)
            return stream

    monkeypatch.setattr(stdio, "STALL_SECONDS", 0.01)
    run = Run(b"hi\none\n", Engine(REPLIES))
    gateway = run.gateway()
    with pytest.raises(EngineCrashError, match=r"^the text thread failed: Panic: a bug$"):
        gateway.converse_each(5) if each else gateway.converse()
    assert run.complaints == ["line 1: the text thread failed: Panic: a bug"]
    assert run.output == ""


def test_a_line_is_answered_before_the_next_is_read() -> None:
    expected = iter(
        [(b"", b"h"), (b"", b"i\non"), (b"Hello you\n", b"e\n"), (b"Hello you\n1\n", b"")]
    )

    class Slow:
        def read(self, size: int, /) -> bytes:
            output, chunk = next(expected)
            assert b"".join(run.writes) == output
            return chunk

    run = Run(Slow())
    assert run.gateway().converse()
    assert run.output == "Hello you\n1\n"


def test_an_object_for_each_reply() -> None:
    run = Run(b"hi\none\n")
    assert run.gateway(as_json=True).converse()
    first, second = run.objects
    assert first == {
        "text": "Hello you",
        "finish_reason": "stop",
        "usage": {
            "prompt_tokens": 4,
            "completion_tokens": 2,
            "cached_tokens": 0,
            "reasoning_tokens": 0,
        },
        "timings": {
            "queue_ms": 0.0,
            "ttft_ms": 20.0,
            "tpot_ms": 20.0,
            "e2e_ms": 40.0,
            "thinking_ms": None,
        },
    }
    assert list(first) == ["text", "finish_reason", "usage", "timings"]
    assert second["timings"]["tpot_ms"] is None
    assert len(run.writes) == 2


THINKS = {"hi": "<think>They greet.</think> Hello you"}


def test_thinking_is_a_field_of_the_object() -> None:
    run = Run(b"hi\n", ScriptedEngine(THINKS, drives_itself=True))
    assert run.gateway(as_json=True).converse()
    (reply,) = run.objects
    assert (reply["text"], reply["reasoning_content"]) == (" Hello you", "They greet.")
    assert reply["usage"]["reasoning_tokens"] == 2 < reply["usage"]["completion_tokens"]
    assert reply["timings"]["thinking_ms"] == 20.0


def test_tool_calls_are_a_field_of_the_object() -> None:
    text = 'It is <tool_call>clock {"zone": 1}</tool_call>'
    replies = {"When?": text, "So?": "Noon"}
    run = Run(b"When?\nSo?\n", ScriptedEngine(replies, drives_itself=True))
    tools = [{"type": "function", "function": {"name": "clock"}}]
    assert run.gateway(as_json=True, sampling={"tools": tools}).converse()
    called, plain = run.objects
    function = {"name": "clock", "arguments": '{"zone": 1}'}
    assert called["text"] == text
    assert called["tool_calls"] == [{"id": None, "type": "function", "function": function}]
    assert "tool_calls" not in plain
    told = run.engine.submissions[1].messages[1]
    assert (told.content, told.tool_calls) == ("It is", (ToolCall("clock", '{"zone": 1}'),))


def test_thinking_is_no_part_of_plain_replies() -> None:
    run = Run(b"hi\n", ScriptedEngine(THINKS, drives_itself=True))
    assert run.gateway().converse()
    assert run.output == " Hello you\n"


class Scored(ScriptedEngine):
    """Answers with two tokens that make one character, in two deltas."""

    def submit(
        self, submission: Submission, wake: Callable[[], None] | None = None
    ) -> RequestStream:
        stream = RequestStream(submission.request_id, wake)
        first, second = Candidate(3, b"\xc3", -0.25), Candidate(4, b"\xa9", -0.5)
        other = Candidate(9, b"e", -2.0)
        stream.put(Delta("", 1, None, (OutputToken(first, 1, (first, other)),)))
        end = Finish(FinishReason.LENGTH, Usage(1, 2, 0), Timings())
        stream.put(Delta("é", 1, end, (OutputToken(second, 2, ()),)))
        return stream


def test_log_probabilities_are_in_the_object() -> None:
    run = Run(b"hi\nhi\n", Scored(REPLIES))
    assert run.gateway(as_json=True).converse_each(5)
    first, second = run.objects
    assert first == second
    assert first["text"] == "é"
    token = {"token": "\ufffd", "id": 3, "bytes": [0xC3], "logprob": -0.25}
    other = {"token": "e", "id": 9, "bytes": [0x65], "logprob": -2.0}
    rest = {"token": "\ufffd", "id": 4, "bytes": [0xA9], "logprob": -0.5}
    assert first["logprobs"] == [
        {**token, "rank": 1, "top_logprobs": [token, other]},
        {**rest, "rank": 2, "top_logprobs": []},
    ]
    run = Run(b"hi\n", Scored(REPLIES))
    run.gateway().converse()
    assert run.output == "é\n"


def test_a_control_message_is_answered_and_not_said() -> None:
    lines = b'hi\n{"set": {"max_num_seqs": 4}}\n{"say": 1}\n{"show": true, "who": "\\ud800"}\none\n'
    for converse in (StdioGateway.converse, lambda gateway: gateway.converse_each(5)):
        run = Run(lines)
        assert not converse(run.gateway(as_json=True))
        hello, answer, chat, refused, one = run.objects
        assert (hello["text"], one["text"]) == ("Hello you", "1")
        assert chat["text"] == 'You said: {"say": 1}'
        assert answer["ok"] is True
        assert answer["knobs"]["max_num_seqs"]["requested"] == 4
        assert [change["who"] for change in answer["history"]] == ["stdin"]
        assert refused["ok"] is False
        assert [s.messages[-1].content for s in run.engine.submissions] == [
            "hi",
            '{"say": 1}',
            "one",
        ]


def test_without_json_it_is_said() -> None:
    run = Run(b'{"show": true}\n')
    assert run.gateway().converse()
    assert run.output == 'You said: {"show": true}\n'


def test_the_knobs_turn_while_replies_before_are_still_made() -> None:
    run = Run(b'poem\n{"set": {"paused": true}}\n{"set": {"paused": false}}\n')
    assert run.gateway(as_json=True).converse_each(10)
    reply, paused, goes_on = run.objects
    assert reply["text"] == "a b\nc d"
    states = [answer["knobs"]["paused"]["requested"] for answer in (paused, goes_on)]
    assert states == [True, False]


def test_the_text_of_an_object_is_readable_utf8() -> None:
    run = Run(b"uml\n")
    run.gateway(as_json=True, sampling={"max_tokens": 1}).converse()
    assert run.output.startswith('{"text": "Grüße", "finish_reason": "length"')


NO_TEXT = "the prompt is empty; it must have some text"
BAD_LINES = {
    "empty": (b"", NO_TEXT),
    "blank": (b" \t", NO_TEXT),
    "byte": (b"ab\xffc", "byte 3 of the line is 0xff, which is not valid UTF-8 there"),
    "surrogate": (b"\xed\xa0\x80", "byte 1 of the line is 0xed, which is not valid UTF-8 there"),
    "long": (b"word " * 2000, "tokens > 1023 allowed"),
}


@pytest.mark.parametrize(("line", "message"), BAD_LINES.values(), ids=BAD_LINES)
def test_a_refused_line_is_told_of_and_the_next_goes_on(line: bytes, message: str) -> None:
    run = Run(b"hi\n" + line + b"\none\n")
    assert not run.gateway(as_json=True).converse()
    first, refused, last = run.objects
    assert (first["text"], last["text"]) == ("Hello you", "1")
    assert list(refused) == ["error"]
    error = refused["error"]
    assert list(error) == ["type", "message", "param"]
    kind = "context_length_error" if "allowed" in message else "invalid_request_error"
    assert (error["type"], error["param"]) == (kind, "prompt")
    assert message in str(error["message"])
    told = [m.content for m in run.engine.submissions[-1].messages]
    assert told == ["hi", "Hello you", "one"]

    run = Run(line + b"\none\n")
    assert not run.gateway().converse_each(10)
    assert run.output == "1\n"
    assert len(run.complaints) == 1
    assert run.complaints[0].startswith("line 1: ")
    assert message in run.complaints[0]


def test_a_line_without_end_is_refused_and_does_not_fill_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stdio, "MAX_LINE_BYTES", 8)
    run = Run(b"123456789\n12345678\n" + b"x" * 200_000 + b"\none")
    assert not run.gateway().converse_each(10)
    assert run.output == "You said: 12345678\n1\n"
    assert [c.split(": ")[0] for c in run.complaints] == ["line 1", "line 3"]
    assert "longer than the 8 bytes that are allowed" in run.complaints[1]


def test_absurd_sampling_is_refused_for_each_line() -> None:
    run = Run(b"hi\none\n")
    assert not run.gateway(as_json=True, sampling={"top_p": 7.0}).converse()
    assert [o["error"]["param"] for o in run.objects] == ["top_p", "top_p"]


def test_all_lines_run_at_once_and_are_answered_in_order() -> None:
    replies = {"long": "a b c d e f", "short": "x"}
    run = Run(b"long\nshort\nlong\nshort\n", ScriptedEngine(replies, drives_itself=True))
    assert run.gateway().converse_each(10)
    assert run.output == "a b c d e f\nx\na b c d e f\nx\n"
    assert run.writes[:3] == [b"a", b" b", b" c"]
    assert all(len(s.messages) == 1 for s in run.engine.submissions)
    assert len({s.origin.conversation for s in run.engine.submissions}) == 4


def test_lines_are_read_no_further_ahead_than_the_window() -> None:
    total, window = 500, 5
    numbers = count()

    class Endless:
        def read(self, size: int, /) -> bytes:
            number = next(numbers)
            # Beside those in the window: the one being written, and the one to be put.
            assert number - len(run.writes) <= window + 2
            return b"one\n" if number < total else b""

    run = Run(Endless())
    assert run.gateway(as_json=True).converse_each(window)
    assert len(run.objects) == total


@pytest.mark.parametrize("converse", [StdioGateway.converse, lambda g: g.converse_each(100)])
def test_a_full_queue_is_waited_for(converse: Callable[[StdioGateway], bool]) -> None:
    engine = ScriptedEngine(REPLIES, knobs=Knobs(queue_limit=1), drives_itself=True)
    chat = (ChatMessage("user", "hi"),)
    others = [engine.submit(Submission(messages=chat)) for _ in range(3)]
    assert [s.drain() is None for s in others] == [True, False, False]
    run = Run(b"hi\none\nhi\n", engine)
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        engine.advance()

    assert converse(run.gateway(sleep=sleep))
    assert run.output == "Hello you\n1\nHello you\n"
    assert run.complaints == []
    assert waits


def test_a_reply_that_breaks_off_ends_its_line() -> None:
    engine = ScriptedEngine(REPLIES, drives_itself=True)
    run = Run(b"poem\none\n", engine)

    def write(data: bytes) -> None:
        run.writes.append(data)
        if data == b" b":
            engine.break_request(engine.submissions[0].request_id, "the logits are not finite")

    run.write = write  # type: ignore[method-assign,assignment]
    assert not run.gateway().converse()
    assert run.output == "a b\n1\n"
    assert run.complaints == ["line 1: the logits are not finite"]


def test_trouble_with_the_input_is_not_the_end_of_it() -> None:
    class Broken:
        def read(self, size: int, /) -> bytes:
            raise OSError("the disk is gone")

    for converse in (
        Run(Broken()).gateway().converse,
        lambda: Run(Broken()).gateway().converse_each(2),
    ):
        with pytest.raises(OSError, match="the disk is gone"):
            converse()


def test_a_closed_output_ends_it() -> None:
    run = Run(b"hi\n" * 100)

    def write(data: bytes) -> None:
        raise BrokenPipeError

    run.write = write  # type: ignore[method-assign,assignment]
    with pytest.raises(BrokenPipeError):
        run.gateway().converse_each(3)


STANDSTILLS = {
    "one conversation": (b"1 2\n3", {}, ["line 1", "line 2"]),
    "each its own": (b"1 2\n3", {"each": True}, ["line 1", "line 2"]),
}


@pytest.mark.parametrize("case", STANDSTILLS)
def test_what_can_never_run_is_told_of(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that the input still brings could move the engine."""
    monkeypatch.setattr(stdio, "STALL_SECONDS", 0.01)
    lines, how, names = STANDSTILLS[case]
    host = EngineHost(Loader())
    try:
        host.load(LoadRequest("a", knobs={"paused": True}))
        run = Run(lines)
        gateway = StdioGateway(host, run.source, run, run.complaints.append)
        assert not (gateway.converse_each(10) if how else gateway.converse())
        reason = "the request can never run: paused"
        assert run.complaints == [f"{name}: {reason}" for name in names]
    finally:
        host.shutdown()


def test_the_message_that_resumes_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the turn that waits, and behind another message."""
    monkeypatch.setattr(stdio, "STALL_SECONDS", 0.01)
    host = EngineHost(Loader())
    try:
        host.load(LoadRequest("a", knobs={"paused": True}))
        run = Run(b'1 2\n{"show": true}\n{"set": {"paused": false}}\n')
        gateway = StdioGateway(
            host, run.source, run, run.complaints.append, sampling={"max_tokens": 2}, as_json=True
        )
        assert gateway.converse()
        shown, resumed, reply = run.objects
        assert shown["knobs"]["paused"]["effective"]
        assert not resumed["knobs"]["paused"]["effective"]
        assert reply["usage"]["completion_tokens"] == 2
    finally:
        host.shutdown()
