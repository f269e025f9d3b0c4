"""The collector does not walk long-lived objects again and again."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from app.process import heap


class Cycle:
    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.freeze()  # as it was found: the heap of all tests


@pytest.mark.usefixtures("thresholds")
def test_what_was_built_is_walked_no_more() -> None:
    with heap.building():
        assert not gc.isenabled()
        module = Cycle()
    assert gc.isenabled()
    walked = weakref.ref(module)
    del module
    gc.collect()
    assert walked() is not None


@pytest.mark.usefixtures("thresholds")
def test_a_model_is_garbage_when_it_is_let_go() -> None:
    model = Cycle()
    alive = weakref.ref(model)
    heap.settle()
    del model
    heap.unsettle()
    gc.collect()
    assert alive() is None


@pytest.mark.usefixtures("thresholds")
def test_full_collections_become_rare_and_small_ones_stay() -> None:
    gc.set_threshold(700, 10, 10)
    heap.settle()
    assert gc.get_threshold() == (700, 10, heap.MIDDLE_BEFORE_FULL)
    heap.unsettle()
    assert gc.get_threshold() == (700, 10, 10)
