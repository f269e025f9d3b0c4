from __future__ import annotations

from pathlib import Path

import pytest

from app.gateway.http.batches import batch_keeper, batch_run, room


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests wait for it."""
    monkeypatch.setattr(batch_keeper, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(batch_run, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(batch_run, "MODEL_SECONDS", 0.01)
    monkeypatch.setattr(room, "IDLE_SECONDS", 0.01)
    monkeypatch.setattr(room, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(room, "BUSY_SECONDS", 0.002)


@pytest.fixture
def store_file(tmp_path: Path) -> Path:
    """One that outlives a gateway."""
    return tmp_path / "store.db"
