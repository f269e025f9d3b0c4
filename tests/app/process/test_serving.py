from __future__ import annotations

import io
import subprocess
import sys
import threading
from contextlib import nullcontext

import pytest

from app.process import heap, serving
from app.system.engine_crash import EngineCrashError
from engine.api.client import LoadRequest
from engine.api.errors import ModelError
from engine.batch.plan import StepPlan
from engine.serving.loading import LoadedModel, Progress
from tests.support.asking import ask, read
from tests.support.scripted_loader import Loader


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


def test_a_crash_while_it_loads_is_no_model_s_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(request: LoadRequest, progress: Progress) -> LoadedModel:
        raise SystemExit(1)

    monkeypatch.setattr(serving, "load_model", load)
    with (
        pytest.raises(EngineCrashError, match=r"^the engine failed: SystemExit: 1$"),
        serving.serving(LoadRequest("m")),
    ):
        pass


def test_a_crash_is_the_end_of_what_was_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the command made of it: a supervisor starts the program again."""
    loader = Loader()

    def crash(_plan: StepPlan) -> None:
        raise SystemExit(1)

    loader.before_step = crash
    monkeypatch.setattr(serving, "load_model", loader)
    with (
        pytest.raises(EngineCrashError, match=r"^the engine failed: SystemExit: 1$"),
        serving.serving(LoadRequest("m")) as client,
    ):
        read(ask(client, "1"))  # type: ignore[arg-type]


def test_a_model_can_be_collected_once_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.model.loading import loader

    done: list[str] = []
    scripted = Loader()
    monkeypatch.setattr(heap, "settle", lambda: done.append("settle"))
    monkeypatch.setattr(heap, "unsettle", lambda: done.append("unsettle"))
    monkeypatch.setattr(serving, "encoding", nullcontext)
    monkeypatch.setattr(loader, "load_entry", lambda _entry, *args: scripted(*args[:2]))
    model = serving.load_model(LoadRequest("builtin"), lambda *_: None)
    assert done == ["settle"]
    assert not scripted.closed
    model.close()
    assert done == ["settle", "unsettle"]
    assert scripted.closed


_SCRIPT = """
from app.process.serving import preload_torch
preload_torch()
mapped = open("/proc/self/maps").read()
assert "torch" not in __import__("sys").modules
assert "libtorch_cpu.so" in mapped, "it is not loaded"
import torch
assert torch.ones(2).sum().item() == 2.0
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only there is it done")
def test_they_are_there_before_the_import_which_takes_them() -> None:
    subprocess.run([sys.executable, "-c", _SCRIPT], check=True)
