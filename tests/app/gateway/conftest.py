from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.gateway.http.gateway import HttpGateway
from app.gateway.http.settings import HttpSettings
from engine.api.client import LoadRequest, Submission
from engine.model.loading.loader import load_model
from engine.serving.host import EngineHost


@pytest.fixture(scope="session")
def builtin() -> Iterator[EngineHost]:
    """The built-in model, whose figures are those of transformers; loading it takes 2 s."""
    host = EngineHost(load_model)
    host.load(LoadRequest("builtin", device="cpu", dtype="float32", num_blocks=256))
    list(host.submit(Submission(prompt="It is", sampling={"max_tokens": 1})))  # waits for it
    yield host
    host.shutdown()


@pytest.fixture(scope="module")
def builtin_url(builtin: EngineHost, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the built-in model is served over HTTP."""
    settings = HttpSettings(listen="127.0.0.1:0", drain_seconds=0.0)
    gateway = HttpGateway(builtin, settings, tmp_path_factory.mktemp("store") / "store.db")
    gateway.start()
    yield gateway.url
    gateway.stop(0.0)
