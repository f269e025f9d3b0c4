"""`tui ask` as a process of its own, against a real broker and a server that is scripted."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.commands import cli
from app.commands.ask import ReplyWriter
from app.gateway.mqtt.protocol.replies import Accepted, DeltaReply, Final
from app.process.exits import ExitCode
from app.settings.layers import CONFIG_VARIABLE
from tests.support.brokers import Mosquitto
from tests.support.mqtt_responder import TIMINGS, USAGE, Asked, Responder, hello, responder

_TIMEOUT = "--timeout is {}; it must be a number of seconds from 0.1 to 86400\n"


@pytest.fixture(scope="module")
def broker() -> Iterator[Mosquitto]:
    with Mosquitto() as mosquitto:
        yield mosquitto


def begin(asked: Asked) -> None:
    asked.accept()
    asked.delta(0, "hel")


def start(broker: Mosquitto, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", "from app.commands.cli import main; main()", "ask"]
    return subprocess.Popen(
        [*command, "--mqtt", f"mqtt://alice@127.0.0.1:{broker.port}", *arguments],
        stdin=subprocess.PIPE,
        stdout=options.pop("stdout", subprocess.PIPE),
        stderr=subprocess.PIPE,
        # A shell that runs the tests in the background has children ignore SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **options,
    )


def ask(broker: Mosquitto, *arguments: str, question: bytes = b"") -> tuple[int, bytes, bytes]:
    process = start(broker, *arguments)
    out, err = process.communicate(question, timeout=20)
    return process.returncode, out, err


def test_the_reply_is_on_standard_output(broker: Mosquitto, own_process: Path) -> None:
    flags = "--session s1 --max-tokens 5 --temperature 0 --top-p 0.5 --top-k 3 --seed 9 --stop A"
    more = "--stop B --priority 2 --timeout 20 --system Be brief."
    with responder(broker.port, hello) as server:
        arguments = ("--chat-template-kwargs", '{"enable_thinking": false}')
        asked_with = (*flags.split(), *arguments, *more.split(" ", 7))
        assert ask(broker, *asked_with, "hi") == (0, b"hello\n", b"")
    (asked,) = server.requests
    wanted = {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "hi"},
        ],
        "session_id": "s1",
        "max_tokens": 5,
        "temperature": 0.0,
        "top_p": 0.5,
        "top_k": 3,
        "seed": 9,
        "stop": ["A", "B"],
        "chat_template_kwargs": {"enable_thinking": False},
        "priority": 2,
        "deadline_ms": 20_000,
        "stream": True,
    }
    assert {name: asked.body.get(name) for name in wanted} == wanted


def test_the_question_may_come_on_standard_input(broker: Mosquitto, own_process: Path) -> None:
    with responder(broker.port, hello) as server:
        code, out, _ = ask(broker, "--json", question="Wie geht's,\nÄrger?".encode())
    assert code == ExitCode.OK
    (asked,) = server.requests
    assert asked.body["messages"][0]["content"] == "Wie geht's,\nÄrger?"
    assert asked.body["stream"] is False
    final = json.loads(out)
    assert (final["type"], final["text"], final["usage"]) == ("final", "hello", USAGE)
    assert final["timings"] == TIMINGS


@pytest.mark.parametrize("flags", [[], ["--json"]], ids=["text", "json"])
def test_an_error_ends_with_1(flags: list[str], broker: Mosquitto, own_process: Path) -> None:
    def fail(asked: Asked) -> None:
        begin(asked)
        asked.error(500, "out of memory", attempt=1)

    with responder(broker.port, fail):
        code, out, err = ask(broker, *flags, "hi")
    assert code == ExitCode.FAILED
    if flags:
        assert json.loads(out)["error"]["message"] == "out of memory"
        assert err == b""
    else:
        assert out == b"hel\n"
        assert err == b"tui: out of memory\n"


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, ExitCode.INTERRUPTED), (signal.SIGTERM, ExitCode.TERMINATED)],
)
def test_a_signal_cancels_the_request(
    number: signal.Signals, code: ExitCode, broker: Mosquitto, own_process: Path
) -> None:
    with responder(broker.port, begin) as server:
        process = start(broker, "hi")
        assert process.stdout is not None
        assert process.stdout.read(3) == b"hel"
        process.send_signal(number)
        out, err = process.communicate(timeout=20)
        assert (process.returncode, out, err) == (code, b"\n", b"")
        cancelled(server)


def test_who_closes_the_pipe_cancels_the_request(broker: Mosquitto, own_process: Path) -> None:
    with responder(broker.port, begin) as server:
        process = start(broker, "hi")
        assert process.stdout is not None
        assert process.stdout.read(3) == b"hel"
        process.stdout.close()
        server.requests[0].delta(1, "lo")
        assert process.wait(20) == ExitCode.CLOSED_PIPE
        cancelled(server)


def test_one_that_is_killed_cancels_by_its_last_will(broker: Mosquitto, own_process: Path) -> None:
    with responder(broker.port, begin) as server:
        process = start(broker, "hi")
        assert process.stdout is not None
        assert process.stdout.read(3) == b"hel"
        process.kill()
        process.communicate(timeout=20)
        cancelled(server)


def cancelled(server: Responder) -> None:
    server.wait(lambda: server.cancels)
    client = server.requests[0].topic.split("/")[5]
    assert server.cancels == [f"llm/v1/default/cancel/alice/{client}/*"]


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_terminal_gets_no_control_characters(
    broker: Mosquitto, own_process: Path, flags: tuple[str, ...]
) -> None:
    def rude(asked: Asked) -> None:
        asked.accept()
        asked.final("a\x1b[2J\tb\nc\x9b\u202e\u2066")

    ours, theirs = pty.openpty()
    with responder(broker.port, rude):
        process = start(broker, "hi", *flags, stdout=theirs)
        os.close(theirs)
        assert process.wait(20) == ExitCode.OK
        shown = os.read(ours, 1000).decode()
    os.close(ours)
    # JSON escapes the first of them itself.
    rest = "c\\x9b\\u202e\\u2066"
    assert (f"a\\u001b[2J\\tb\\n{rest}" if flags else f"a\\x1b[2J\tb\r\n{rest}\r\n") in shown
    assert not set("\x1b\x9b\u202e\u2066") & set(shown)


@pytest.mark.parametrize(
    ("line", "question", "told"),
    [
        ("--mqtt mqtt://h", b"  \n", "QUESTION is empty; it must have some text"),
        ("hi", b"", "no broker is set: "),
        ("hi --mqtt mqtt://h --session a/b", b"", "--session is 'a/b'; it must be"),
        ("hi --top-p 7", b"", "--top-p: top_p is 7.0; it must be a number"),
        ("hi --timeout nan", b"", _TIMEOUT.format("nan")),
        ("hi --timeout inf", b"", _TIMEOUT.format("inf")),
        ("hi --timeout -3", b"", _TIMEOUT.format("-3")),
        ("hi --timeout 0", b"", _TIMEOUT.format("0")),
        (
            "hi --priority 1000001",
            b"",
            "--priority is 1000001; it must be an integer from -1000000",
        ),
    ],
)
def test_what_cannot_be_asked_is_told(
    line: str, question: bytes, told: str, own_process: Path
) -> None:
    result = CliRunner().invoke(cli.app, ["ask", *line.split()], input=question)
    assert (result.exit_code, result.stdout) == (ExitCode.USAGE, "")
    assert result.stderr.startswith(f"tui: {told}")


def test_a_question_that_is_no_text_is_not_asked(broker: Mosquitto, own_process: Path) -> None:
    code, out, err = ask(broker, question=b"\xff")
    assert (code, out) == (ExitCode.NO_FILE, b"")
    assert err.startswith(b"tui: standard input is not UTF-8: ")
    code, out, err = ask(broker, "--system", os.fsdecode(b"\xff"), "hi")
    assert (code, out) == (ExitCode.USAGE, b"")
    assert err == b"tui: QUESTION, --system and --stop must be UTF-8\n"


def test_the_file_may_name_the_broker(
    broker: Mosquitto, own_process: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = own_process / "c.toml"
    config.write_text(f'[mqtt]\nurl = "mqtt://127.0.0.1:{broker.port}"\npool = "other"\n')
    monkeypatch.setenv(CONFIG_VARIABLE, str(config))
    program = [sys.executable, "-c", "from app.commands.cli import main; main()", "ask", "hi"]
    with responder(broker.port, hello, pool="other"):
        ran = subprocess.run(program, capture_output=True, timeout=20)
    assert (ran.returncode, ran.stdout) == (ExitCode.OK, b"hello\n")


class Page:
    """The texts of a writer, and its notices in brackets."""

    def __init__(self) -> None:
        self.text = ""
        self.writer = ReplyWriter(self._write, lambda notice: self._write(f"[{notice}]"))

    def _write(self, text: str) -> None:
        self.text += text


def delta(seq: int, text: str, attempt: int = 1) -> DeltaReply:
    message = {"request_id": "r", "attempt": attempt, "seq": seq}
    choices = [{"index": 0, "delta": {"content": text}}]
    return DeltaReply.model_validate_json(json.dumps({**message, "choices": choices}))


def final(text: str, attempt: int = 1) -> Final:
    message = {"request_id": "r", "attempt": attempt, "last_seq": 1, "text": text, "model": "m"}
    rest = {"finish_reason": "stop", "usage": USAGE, "timings": TIMINGS}
    return Final.model_validate_json(json.dumps({**message, **rest}))


VOID = "[the server started again; the text above is void]"
PAGES: dict[str, tuple[list[DeltaReply], Final, str]] = {
    "whole": ([delta(0, "ab"), delta(1, "c")], final("abc"), "abc\n"),
    "no deltas": ([], final("abc"), "abc\n"),
    "the last is lost": ([delta(0, "ab")], final("abc"), "abc\n"),
    "the first is lost": ([delta(1, "bc")], final("abc"), "abc\n"),
    "one between is lost": ([delta(0, "a"), delta(2, "c"), delta(3, "d")], final("abcd"), "abcd\n"),
    "one comes twice": ([delta(0, "a"), delta(0, "a"), delta(1, "b")], final("ab"), "ab\n"),
    "another text": ([delta(0, "ab")], final("xy"), "ab\nxy\n"),
    "another attempt": ([delta(0, "ab"), delta(0, "x", 2)], final("xy", 2), f"ab\n{VOID}xy\n"),
    "a silent one": ([delta(0, "ab")], final("xy", 2), f"ab\n{VOID}xy\n"),
    "after nothing": ([delta(0, "x", 2)], final("xy", 2), "xy\n"),
}


@pytest.mark.parametrize(("heard", "end", "page"), PAGES.values(), ids=PAGES)
def test_what_is_written_of_a_reply(heard: list[DeltaReply], end: Final, page: str) -> None:
    shown = Page()
    for reply in heard:
        shown.writer.hear(reply)
    shown.writer.end(end)
    assert shown.text == page


def test_another_attempt_is_told_when_it_is_accepted() -> None:
    shown = Page()
    shown.writer.hear(delta(0, "ab"))
    shown.writer.hear(Accepted(request_id="r", attempt=2, queue_depth=0, priority=0, model="m"))
    assert shown.text == f"ab\n{VOID}"
    shown.writer.break_off()
    assert shown.text == f"ab\n{VOID}"
