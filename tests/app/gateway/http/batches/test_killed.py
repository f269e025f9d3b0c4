"""A server that is killed in the middle of a batch, and started again."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.batch_asking import answers, client_of, line, start

# Each request is noted before it is computed.
PROGRAM = """
import sys, threading, time
from contextlib import contextmanager
from app.commands import serve
from app.commands.cli import main
from tests.support.scripted_engine import ScriptedEngine

asked, pace = open(sys.argv.pop(1), "a"), float(sys.argv.pop(1))

class Noting(ScriptedEngine):
    def submit(self, submission, wake=None):
        asked.write(submission.messages[-1].content + "\\n")
        asked.flush()
        return super().submit(submission, wake)

@contextmanager
def loading(request):
    engine = Noting()
    def drive():
        while True:
            engine.advance()
            time.sleep(pace)
    threading.Thread(target=drive, daemon=True).start()
    yield engine

serve.loading = loading
main()
"""
NAMES = [f"r{number}" for number in range(300)]
SERVING = "serving builtin on "


@contextmanager
def served(asked: Path, pace: float) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server that takes so many seconds for a step, and where it is."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(asked), str(pace), "serve", "--http", "0"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        line = next(text for text in process.stderr if SERVING in text)
        yield process, line.partition(SERVING)[2].strip()
    finally:
        process.kill()
        process.communicate()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_killed_server_loses_no_line_and_answers_none_twice(own_process: Path) -> None:
    asked = own_process / "asked"
    with served(asked, 0.02) as (process, url):
        client = client_of(url)
        batch = start(client, [line(name) for name in NAMES])

        def num_answered() -> int:
            counts = client.batches.retrieve(batch.id).request_counts
            return counts.completed if counts is not None else 0

        until(num_answered)
        known = num_answered()
        process.kill()
        process.wait()
    before = asked.read_text().split()
    assert known < len(before) < len(NAMES)
    with served(asked, 0.001) as (_, url):
        client = client_of(url)
        until(lambda: client.batches.retrieve(batch.id).status == "completed")
        batch = client.batches.retrieve(batch.id)
        answered = answers(client, batch.output_file_id)
        assert {*answered} == {*NAMES}
        assert batch.error_file_id is None
        counts = batch.request_counts
        assert counts is not None
        assert (counts.total, counts.completed, counts.failed) == (300, 300, 0)
        content = client.files.content(batch.output_file_id or "").text
        assert [json.loads(text)["custom_id"] for text in content.splitlines()] == NAMES
    # What had an answer was not asked again; what was asked twice had none.
    again = asked.read_text().split()[len(before) :]
    assert len({*again}) == len(again) <= len(NAMES) - known
    assert {*before} | {*again} == {*NAMES}
