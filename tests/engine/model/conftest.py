"""Rules for the tests that compute."""

from __future__ import annotations

import pickle
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.model.attention.cpu_backend import CpuAttention
from engine.model.checks import gate
from engine.model.checks.script import Script, short_script
from engine.model.loading import loader
from engine.native import kernels
from engine.text.encoder import ChatEncoder
from tests.support.checkpoints import save_checkpoint
from tests.support.encoding import Here

# Tiny operators gain nothing from a second thread and lose much where the cores are shared.
torch.set_num_threads(1)


@pytest.fixture(params=["torch", "cpu"] if kernels() else ["torch"])
def backend(request: pytest.FixtureRequest) -> str:
    """A test that asks for it runs with each attention backend of this machine."""
    return str(request.param)


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models run module by module: a program takes their weights."""
    monkeypatch.setattr(CpuAttention, "why_not", lambda shape: "the test looks at the weights")


@pytest.fixture
def short_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate runs three steps of small models, too: an interpreted one takes a second."""

    def script(vocab_size: int, block_size: int, *, keeps_states: bool) -> Script:
        return short_script(vocab_size, block_size)

    monkeypatch.setattr(gate, "long_script", script)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    save_checkpoint(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy that a test may break."""
    for file in saved.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


class EncoderHere(Here):
    """Encodes as the pool's processes do, in this one."""

    def __init__(self) -> None: ...

    def begin(self, tokenizer: Any, key: str, *, begins_thinking: bool) -> None:
        sent = pickle.loads(pickle.dumps(tokenizer))
        super().__init__(ChatEncoder(sent, key, begins_thinking=begins_thinking))

    def replace_tokenizer(self, tokenizer: object) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def encodes_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process for each model would take longer to start than the model takes to load."""

    monkeypatch.setattr(loader, "encoding", lambda: nullcontext(EncoderHere()))
