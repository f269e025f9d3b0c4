"""Launches that may overlap, and where the overlap ends."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("triton")

from engine.triton import overlap
from engine.triton.overlap import launch_options, overlapping

ON = {"OVERLAP": True, "launch_pdl": True}
OFF = {"OVERLAP": False}


@pytest.fixture
def _compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "is_interpreted", lambda: False)


@pytest.mark.usefixtures("_compiled")
def test_launches_overlap_within_and_not_around() -> None:
    assert launch_options() == OFF
    with overlapping(True):
        assert launch_options() == ON
        with overlapping(False):
            assert launch_options() == OFF
        assert launch_options() == ON
    assert launch_options() == OFF


@pytest.mark.usefixtures("_compiled")
def test_it_ends_when_a_launch_fails() -> None:
    with pytest.raises(ZeroDivisionError), overlapping(True):
        _ = 1 / 0
    assert launch_options() == OFF


@pytest.mark.usefixtures("_compiled")
def test_another_threads_launches_are_left_alone() -> None:
    found = []
    with overlapping(True):
        thread = threading.Thread(target=lambda: found.append(launch_options()))
        thread.start()
        thread.join()
    assert found == [OFF]


def test_the_interpreter_overlaps_nothing() -> None:
    with overlapping(True):
        assert launch_options() == OFF
