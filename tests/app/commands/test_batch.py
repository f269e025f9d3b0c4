"""tui batch: each line of a file has one answer, also of a run that goes on."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from app.commands import batch
from app.process.exits import ExitCode
from app.process.process import StreamError
from app.settings.settings import Settings
from engine.api.client import Submission
from tests.support.scripted_engine import ScriptedEngine


def line(name: str, text: str = "hello", **fields: Any) -> str:
    body = {"messages": [{"role": "user", "content": text}]}
    told = {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body}
    return json.dumps(told | fields)


class Driven(ScriptedEngine):
    """Computes as soon as it is asked."""

    def submit(self, submission: Submission, wake: Any = None) -> Any:
        stream = super().submit(submission, wake)
        while self.advance():
            pass
        return stream


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> ScriptedEngine:
    engine = Driven()
    monkeypatch.setattr(batch, "serving", lambda *_: nullcontext(engine))
    return engine


def answers(output: Path) -> dict[str | None, Any]:
    told = [json.loads(text) for text in output.read_text().splitlines()]
    return {one["custom_id"]: one["response"] for one in told}


def test_each_request_has_its_answer(
    tmp_path: Path, engine: ScriptedEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "asks.jsonl"
    lines = [
        line("a"),
        line("b", url="/v1/completions", body={"prompt": "Once", "model": "any"}),
        "",
        line("c", body={"messages": []}),
        line("d", url="/v1/embeddings"),
        line("e", url="/v1/responses", body={"input": "hello"}),
        line("f", url="/v1/completions", body={"prompt": []}),
    ]
    file.write_text("\n".join(lines))
    assert batch.run(Settings(), file, None, at_once=2) == ExitCode.FAILED
    told = answers(tmp_path / "asks.out.jsonl")
    assert {name: one["status_code"] for name, one in told.items()} == {
        "a": 200,
        "b": 200,
        "c": 400,
        "d": 400,
        "e": 200,
        "f": 400,
    }
    assert told["a"]["body"]["choices"][0]["message"]["content"] == "You said: hello"
    assert told["b"]["body"]["choices"][0]["text"] == "And then: Once"
    assert told["c"]["body"]["error"]["param"] == "messages"
    assert told["d"]["body"]["error"]["param"] == "url"
    (said,) = told["e"]["body"]["output"]
    assert said["content"][0]["text"] == "You said: hello"
    assert told["e"]["body"]["store"] is False
    assert told["f"]["body"]["error"]["param"] == "prompt"
    assert {one.priority for one in engine.submissions} == {-1_000_000}
    assert {one.origin.user for one in engine.submissions} == {"batch"}
    assert "6 answered, 3 of them with an error" in capsys.readouterr().err


def test_what_has_no_name_has_an_answer_without_one(tmp_path: Path, engine: ScriptedEngine) -> None:
    file = tmp_path / "asks.jsonl"
    file.write_text('{"custom_id": "\\ud800"}\n[]\n{"custom_id": 3}\n')
    assert batch.run(Settings(), file, None, at_once=2) == ExitCode.FAILED
    told = [json.loads(text) for text in (tmp_path / "asks.out.jsonl").read_text().splitlines()]
    assert [one["custom_id"] for one in told] == [None] * 3
    assert {one["response"]["status_code"] for one in told} == {400}


def test_a_run_that_was_broken_off_goes_on(tmp_path: Path, engine: ScriptedEngine) -> None:
    file, output = tmp_path / "asks.jsonl", tmp_path / "out"
    file.write_text("\n".join(line(name, name) for name in "abc"))
    output.write_text(json.dumps({"custom_id": "a", "response": {"status_code": 200}}) + '\n{"cus')
    assert batch.run(Settings(), file, output, at_once=9) == ExitCode.OK
    assert [one.messages[0].content for one in engine.submissions] == ["b", "c"]
    whole = [text for text in output.read_text().splitlines() if text != '{"cus']
    assert [json.loads(text)["custom_id"] for text in whole] == ["a", "b", "c"]


def test_a_file_of_something_else_is_not_written_to(tmp_path: Path, engine: ScriptedEngine) -> None:
    file, output = tmp_path / "asks.jsonl", tmp_path / "out"
    file.write_text(line("a"))
    output.write_text("a letter\nto somebody\n")
    with pytest.raises(StreamError, match="has no answer in line 1; state another --output"):
        batch.run(Settings(), file, output, at_once=9)
    assert output.read_text() == "a letter\nto somebody\n"
    with pytest.raises(StreamError, match="cannot be read: No such file"):
        batch.run(Settings(), tmp_path / "none", None, at_once=9)
    assert engine.submissions == []
