"""When the Triton kernels are picked, and what happens where they cannot be used."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.api.errors import ModelError
from engine.api.sampling import SamplingParams
from engine.batch.plan import NewSequence, Row, StepPlan
from engine.cache.storage import CacheShape
from engine.model.attention import triton_backend
from engine.model.attention.triton_backend import TritonAttention
from engine.model.loading import plan
from engine.model.program.unreadable import UnreadableError
from engine.model.running.forward import pick_backend
from tests.support.loading import load

pytest.importorskip("triton")

from engine.model.gpu import launches, sampler

pytestmark = pytest.mark.usefixtures("encodes_here", "short_scripts")

ON_GPU = CacheShape(
    num_layers=1,
    num_blocks=1,
    block_size=16,
    num_kv_heads=2,
    head_dim=128,
    value_dim=128,
    dtype=torch.bfloat16,
    device=torch.device("cuda"),
)
ON_CPU = replace(ON_GPU, device=torch.device("cpu"))


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels would be compiled, not interpreted."""
    monkeypatch.setattr(triton_backend, "is_interpreted", lambda: False)


@pytest.mark.usefixtures("compiled")
def test_they_are_picked_on_a_gpu_if_they_can_serve() -> None:
    assert pick_backend(ON_GPU) == "triton"
    assert pick_backend(replace(ON_GPU, head_dim=320)) == "torch"
    assert pick_backend(ON_CPU) != "triton"


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        (ON_CPU, "the Triton kernels run on a GPU, not on cpu"),
        (
            replace(ON_GPU, dtype=torch.float64),
            "the Triton kernels do not compute in torch.float64",
        ),
        (replace(ON_GPU, value_dim=257), "the Triton kernels take heads of at most 256 numbers"),
    ],
)
def test_what_they_cannot_serve_is_said(shape: CacheShape, reason: str) -> None:
    assert TritonAttention.why_not(shape) == reason
    with pytest.raises(ModelError, match=reason):
        TritonAttention().storage(shape)


def test_an_installation_without_triton_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert TritonAttention.why_not(ON_GPU) == "this installation has no triton"


def test_a_model_is_loaded_onto_them(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "pick_backend", lambda cache: "triton")
    loaded = load(saved)
    assert loaded.card.attention == "triton"
    assert loaded.runner.depth == 2
    loaded.close()


def test_a_model_that_cannot_be_read_is_computed_module_by_module(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(*_: Any, **__: Any) -> None:
        raise UnreadableError("it is a test")

    monkeypatch.setattr(plan, "pick_backend", lambda cache: "triton")
    monkeypatch.setattr("engine.model.gpu.forward.find_graph", unreadable)
    loaded = load(saved)
    assert loaded.card.attention == "triton"
    assert loaded.runner.depth == 1
    loaded.close()


def test_torch_is_used_where_they_cannot_be_run(
    saved: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no kernel image is available for execution on the device")

    monkeypatch.setattr(plan, "pick_backend", lambda cache: "triton")
    monkeypatch.setattr(launches, "paged_attention", fail)
    loaded = load(saved)
    assert loaded.card.attention == "torch"
    assert "no kernel image is available for execution on the device" in caplog.text
    loaded.close()


@pytest.mark.parametrize("name", ["score", "choose"])
def test_torch_chooses_tokens_where_sampling_cannot_be_run(
    name: str, saved: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Kernel:
        def __getitem__(self, grid: object) -> Any:
            raise RuntimeError("PassManager::run failed")

    monkeypatch.setattr(plan, "pick_backend", lambda cache: "triton")
    monkeypatch.setattr(sampler, name, Kernel())
    loaded = load(saved)
    assert loaded.card.attention == "triton"
    assert loaded.runner.depth == 1
    said = "torch chooses its tokens, one step at a time and without CUDA graphs, because our"
    assert caplog.text.count(said) == 1
    assert "PassManager::run failed" in caplog.text
    new = NewSequence(0, (5, 6, 7), 3, SamplingParams(temperature=0), 0, (), ())
    one = StepPlan(1, (Row(0, 0, 3, (0,), True, True),), new=(new,))
    result = loaded.runner.result(loaded.runner.start_step(one))
    assert result.token_ids[0] >= 0
    loaded.close()


def test_torch_is_used_where_they_compute_something_else(
    saved: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    attend = launches.paged_attention

    def wrong(output: torch.Tensor, *arguments: Any, **named: Any) -> None:
        attend(output, *arguments, **named)
        output.mul_(2)

    monkeypatch.setattr(plan, "pick_backend", lambda cache: "triton")
    monkeypatch.setattr(launches, "paged_attention", wrong)
    loaded = load(saved)
    assert loaded.card.attention == "torch"
    assert "our kernels are not used" in caplog.text
    loaded.close()
