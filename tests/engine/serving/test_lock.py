"""Where a device computes, threads hand the interpreter's lock over in time for its next step."""

from __future__ import annotations

import sys

import pytest

from engine.api.client import LoadRequest
from engine.batch.plan import StepPlan
from engine.serving.host import EngineHost
from engine.serving.loading import LoadedModel, Progress
from engine.serving.lock import SWITCH_SECONDS
from tests.support.asking import ask, read
from tests.support.scripted_loader import Loader


@pytest.fixture
def intervals(loader: Loader) -> list[float]:
    """The interval in force at each step."""
    found: list[float] = []

    def note(_plan: StepPlan) -> None:
        found.append(sys.getswitchinterval())

    loader.before_step = note
    return found


def test_switches_are_prompt_while_a_device_serves(loader: Loader, intervals: list[float]) -> None:
    before = sys.getswitchinterval()
    loader.device = "cuda"
    host = EngineHost(loader)
    host.load(LoadRequest("a"))
    read(ask(host))
    assert intervals == [pytest.approx(SWITCH_SECONDS)] * len(intervals) != []
    loader.device = "cpu"
    host.load(LoadRequest("b"))
    read(ask(host))
    assert intervals[-1] == before
    host.shutdown()
    assert sys.getswitchinterval() == before


def test_they_are_left_alone_where_the_processor_computes(
    host: EngineHost, intervals: list[float]
) -> None:
    before = sys.getswitchinterval()
    host.load(LoadRequest("a"))
    read(ask(host))
    assert set(intervals) == {before}


def test_they_are_prompt_while_a_model_is_loaded(loader: Loader) -> None:
    before, found = sys.getswitchinterval(), list[float]()

    def load(request: LoadRequest, progress: Progress) -> LoadedModel:
        found.append(sys.getswitchinterval())
        return loader(request, progress)

    host = EngineHost(load)
    host.load(LoadRequest("a"))
    read(ask(host))
    host.shutdown()
    assert found == [pytest.approx(SWITCH_SECONDS)]
    assert sys.getswitchinterval() == before
