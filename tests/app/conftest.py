from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from app.store.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(tmp_path / "store.db")) as store:
        yield store


@pytest.fixture
def own_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for all that a command writes; its log handlers and signals are taken back."""
    for name in ("CONFIG", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    root = logging.getLogger()
    handlers, level, terminate = root.handlers[:], root.level, signal.getsignal(signal.SIGTERM)
    root.handlers[:] = []  # those of pytest would be closed
    yield tmp_path
    for handler in root.handlers:
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)
    signal.signal(signal.SIGTERM, terminate)
    logging.captureWarnings(False)
