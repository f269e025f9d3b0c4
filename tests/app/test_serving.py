from __future__ import annotations

import io
import threading

import pytest

from app import serving
from engine.client import LoadRequest
from engine.errors import ModelError
from engine.loading import LoadedModel, Progress


class Terminal(io.StringIO):
    def __init__(self) -> None:
        super().__init__()
        self.half = threading.Event()

    def write(self, text: str, /) -> int:
        if "50%" in text:
            self.half.set()
        return super().write(text)


def test_progress_is_shown_and_failure_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()

    def load(request: LoadRequest, progress: Progress) -> LoadedModel:
        progress("reading weights", 1500, 3000)
        assert terminal.half.wait(20)
        raise ModelError("model.safetensors is truncated")

    monkeypatch.setattr(serving, "load_model", load)
    with (
        pytest.raises(serving.ModelLoadError) as failed,
        serving.serving(LoadRequest("m"), terminal),
    ):
        pass
    assert str(failed.value) == "could not load m: model.safetensors is truncated"
    assert "\r\x1b[Km: reading weights, 50% of 3,000 bytes\r" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K\r")
