"""A host, the loader of its models, and what holds their steps up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.api.client import LoadRequest
from engine.model.loading.loader import load_model
from engine.serving.host import EngineHost
from tests.support.scripted_loader import Loader, Turnstile


@pytest.fixture
def loader() -> Loader:
    return Loader()


@pytest.fixture
def host(loader: Loader) -> Iterator[EngineHost]:
    engine = EngineHost(loader)
    yield engine
    for gate in loader.gates.values():
        gate.set()
    if isinstance(loader.before_step, Turnstile):
        loader.before_step.open()
    engine.shutdown()
    assert not engine._thread.is_alive()
    for runner in loader.runners.values():
        assert not runner.violations


@pytest.fixture(scope="package")
def built_in() -> Iterator[EngineHost]:
    """A host of the built-in model."""
    engine = EngineHost(load_model)
    engine.load(LoadRequest("builtin", device="cpu", num_blocks=256))
    yield engine
    engine.shutdown()


@pytest.fixture
def turnstile(loader: Loader) -> Turnstile:
    loader.before_step = Turnstile()
    return loader.before_step
