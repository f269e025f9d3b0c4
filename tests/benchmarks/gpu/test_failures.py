"""A failed or endless measurement has a row, and the others are measured all the same."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

pytest.importorskip("triton")

from benchmarks.gpu import serving
from benchmarks.gpu.whole import main, table
from benchmarks.peers.engines.continuous import ends
from tests.support.harness import CoreHarness


def test_a_row_that_fails_ends_its_table_alone(capsys: pytest.CaptureFixture[str]) -> None:
    def rows() -> Iterator[tuple[str, ...]]:
        yield ("one", "1")
        raise MemoryError("no room for two")

    table("first", ("name", "number"), rows())
    table("second", ("name", "number"), [("three", "3")])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert {"one 1", "failed: MemoryError: no room for two", "three 3"} <= set(lines)


def test_a_request_that_is_refused_is_not_waited_for() -> None:
    harness = CoreHarness(max_model_len=16)
    harness.submit("long", range(4, 12), max_tokens=400)
    with pytest.raises(RuntimeError, match="max_tokens is 400"):
        list(serving.steps(harness.core))


def test_an_engine_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "PATIENCE", 0.0)
    with pytest.raises(TimeoutError, match="it has not ended within 0 s"):
        list(serving.steps(CoreHarness().core))
    manager = SimpleNamespace(get_result=lambda timeout: None, is_running=lambda: True)
    with pytest.raises(TimeoutError, match="3 requests have not ended"):
        list(ends(manager, 3, patience=0.0))


@pytest.mark.long
def test_no_part_fails_on_a_tiny_model(capsys: pytest.CaptureFixture[str]) -> None:
    main(
        [
            "--device",
            "cpu",
            "--models",
            "tiny",
            "--parts",
            "kernels,decode,prefill,gap,structure,serve",
        ]
    )
    said = capsys.readouterr().out
    assert "failed" not in said
    assert said.count("transformers CB") == 1
    assert "3 of 3" in said
    assert all(policy in said for policy in ("prefill_first", "stall_free"))
