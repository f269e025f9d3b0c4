"""The line protocol between the benchmark and its workers, with a fake engine."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from benchmarks.peers import comparison as comparison_module
from benchmarks.peers.comparison import Comparison
from benchmarks.peers.serve import Setup
from benchmarks.peers.worker import Worker, WorkerError
from benchmarks.peers.workload import Recipe, Workload
from tests.benchmarks.peers.fake import STEP_SECONDS

SETUP = Setup("tiny", 2, 4, 64, (64,))
BATCH = Workload(((5, 6), (7, 8)), 5, (0.0, 0.0))
STREAM = Workload(((5, 6), (7, 8)), 5, (0.0, 0.1))

Start = Callable[[str], Worker]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:

        def start(behaviour: str = "") -> Worker:
            command = [sys.executable, "-m", "tests.benchmarks.peers.fake", behaviour]
            log = tmp_path / f"{behaviour}.log"
            return stack.enter_context(closing(Worker(command, {}, log)))

        yield start


def test_a_worker_loads_and_runs_again_and_again(start: Start) -> None:
    worker = start("")
    assert worker.load(SETUP).settings == "2 threads of tiny"
    for _ in range(2):
        run = worker.run(BATCH)
        assert run is not None
        assert [request.tokens for request in run.requests] == [[0, 1, 2, 3, 4]] * 2
        for request in run.requests:
            assert request.times == sorted(request.times)
            assert request.times[0] >= STEP_SECONDS


def test_what_libraries_print_is_no_answer(start: Start, tmp_path: Path) -> None:
    start("").load(SETUP)
    log = (tmp_path / ".log").read_text()
    assert "a library greets" in log
    assert "so does Python" in log


def test_requests_come_at_their_time(start: Start) -> None:
    worker = start("")
    worker.load(SETUP)
    run = worker.run(STREAM)
    assert run is not None
    first, second = run.requests
    assert second.arrival == 0.1
    assert first.times[-1] < 0.1 < second.times[0]


def test_texts_are_encoded_and_scored_by_those_who_can(start: Start) -> None:
    worker = start("read")
    assert worker.encode(["", "ab"]) == [[1], [1, 97, 98]]
    assert worker.score([[1, 97, 98]]) == [pytest.approx(2 * math.log(0.5))]
    other = start("batch")
    assert other.score([[1, 97]]) is None
    with pytest.raises(WorkerError, match="TypeError: this peer encodes no text"):
        other.encode([""])


def test_a_workload_may_be_beyond_a_peer(start: Start) -> None:
    worker = start("batch")
    worker.load(SETUP)
    assert worker.run(STREAM) is None
    assert worker.run(BATCH) is not None


@pytest.mark.parametrize(
    ("behaviour", "complaint"),
    [
        ("refuse", "RuntimeError: no such model"),
        ("short", "4 tokens instead of 5"),
        ("end", "it ended: out of luck"),
    ],
)
def test_a_failure_is_reported(start: Start, behaviour: str, complaint: str) -> None:
    def load_and_run(worker: Worker) -> None:
        worker.load(SETUP)
        worker.run(BATCH)

    with pytest.raises(WorkerError, match=complaint):
        load_and_run(start(behaviour))


def test_peers_take_turns_and_one_that_fails_goes(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It reads 5 GiB, twice a run.
    monkeypatch.setattr(comparison_module, "read_bandwidth", lambda device: 25e9)
    said: list[str] = []
    workers = {name: start(name) for name in ("", "batch", "end")}
    for worker in workers.values():
        worker.load(SETUP)
    comparison = Comparison(said.append, dict(workers))
    recipes = {Recipe("batch", 2, 4, 5): None, Recipe("chat", 2, 4, 5, is_poisson=True): 1000.0}
    for number in range(3):
        comparison.round(recipes, number, is_kept=number > 0)
    assert list(comparison.failed) == ["end"]
    assert comparison.results("chat")["batch"] is None
    plain = comparison.results("batch")
    assert set(plain) == {"", "batch"}
    for measures in plain.values():
        assert measures is not None
        assert STEP_SECONDS <= measures.decode_step < 20 * STEP_SECONDS
    kept = comparison.measures["batch"][""]
    assert kept is not None
    assert len(kept) == 2  # the first round warms up
    assert said[:8] == [
        *("batch by ", "batch by batch", "chat by ", "chat by batch"),
        *("batch by batch", "batch by ", "chat by batch", "chat by "),
    ]
    assert all(cores < 0.5 for _, cores in comparison.idle_cores())
