from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import pytest

from app.commands import demo
from app.process.exits import ExitCode
from app.settings.settings import Settings
from engine.api.client import EngineClient, LoadRequest, Submission
from tests.support.replies import echo
from tests.support.scripted_engine import ScriptedEngine

QUESTIONS = [question for script in demo.SCRIPTS for question in script]


def held(engine: ScriptedEngine) -> tuple[bool, list[str]]:
    lines: list[str] = []
    return demo.run_chats(engine, lines.append), lines


def test_eight_chats_of_several_turns_run_at_once() -> None:
    engine = ScriptedEngine(drives_itself=True)
    answered, lines = held(engine)
    assert answered
    assert len(demo.SCRIPTS) == 8
    assert sorted(s.messages[-1].content for s in engine.submissions) == sorted(QUESTIONS)
    assert max(r.prefill_rows + r.decode_rows for r in engine.step_records(0)) == 8
    for number, script in enumerate(demo.SCRIPTS, 1):
        for question in script:
            assert f"chat {number} > {question}\n    You said: {question}" in lines


def test_the_table_holds_what_the_engine_measured() -> None:
    engine = ScriptedEngine(drives_itself=True)
    _, lines = held(engine)
    table = {line[:13].strip(): line[13:].split() for line in lines if line[:1] in ("c", "a", "p")}
    records = engine.step_records(0)
    prompts = sum(map(len, engine.prompts.values()))
    hits = sum(r.prefix_hit_tokens for r in records)
    output = sum(len(echo(s).split()) for s in engine.submissions)
    row = next(line.split() for line in lines if line.startswith("all, p50"))
    assert row[2:6] == [str(len(QUESTIONS)), str(prompts), str(hits), str(output)]
    assert row[6:] == ["0.0", "20.0", "20.0"]
    chat = [line.split() for line in lines if re.match(r"chat \d +3 ", line)]
    assert [int(cells[3]) for cells in chat] == [
        sum(len(engine.prompts[s.request_id]) for s in engine.submissions if _first(s) == script[0])
        for script in demo.SCRIPTS
    ]
    assert table["prefix hits"][:3] == [str(hits), "of", str(prompts)]
    assert hits > 0
    assert table["preemptions"] == ["0"]
    steps = next(line for line in lines if line.startswith("steps"))
    assert f" {len(records)} in {records[-1].end - records[0].start:.2f} s" in steps
    used = max(r.used_blocks for r in records)
    cache = next(line for line in lines if line.startswith("KV cache"))
    assert f"at most {used} of 256 blocks used" in cache


def test_a_reply_that_fails_is_shown_and_counted() -> None:
    engine = ScriptedEngine(drives_itself=True)
    advance = engine.advance

    def breaking(steps: int = 1) -> int:
        ran = advance(steps)
        if len(engine.submissions) == 8 and len(engine.step_records(0)) == 1:
            engine.break_request(engine.submissions[2].request_id, "the logits are not finite")
        return ran

    engine.advance = breaking  # type: ignore[method-assign]
    answered, lines = held(engine)
    assert not answered
    assert f"chat 3 > {demo.SCRIPTS[2][0]}\n    the logits are not finite" in lines
    assert len(engine.submissions) == len(QUESTIONS)


def test_an_engine_that_serves_nothing_is_told_of() -> None:
    engine = ScriptedEngine(loaded=False, drives_itself=True)
    answered, lines = held(engine)
    assert not answered
    assert any("no model is loaded" in line for line in lines)


def _first(submission: Submission) -> str:
    return next(m.content for m in submission.messages if m.role == "user")


def test_it_runs_under_the_knobs_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[LoadRequest] = []

    @contextmanager
    def serving(request: LoadRequest, _terminal: TextIO | None) -> Iterator[EngineClient]:
        seen.append(request)
        yield ScriptedEngine(drives_itself=True)

    monkeypatch.setattr(demo, "serving", serving)
    settings = Settings(device="cpu", knobs={"policy": "orca"}, max_num_seqs=3)
    assert demo.run(settings) == ExitCode.OK
    assert seen == [LoadRequest("builtin", device="cpu", knobs={"policy": "orca"})]
