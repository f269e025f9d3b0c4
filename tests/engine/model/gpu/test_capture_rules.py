"""The operations of a step can be captured in a CUDA graph: they wait for nothing, and ours
allocate nothing.

The kernels are left out here; they get nothing but pointers and numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("triton")

from triton.runtime.interpreter import GridExecutor

from engine.api.config import EngineConfig
from engine.cache.storage import cache_shapes
from engine.model.gpu import forward as gpu_forward
from engine.model.gpu.forward import GpuForward, make_gpu_program
from engine.model.gpu.inputs import StepSize
from engine.model.tracing.trace import trace
from tests.support.zoo import MAX_LEN, SERVED, tiny_model

CONFIG = EngineConfig(num_blocks=8, max_model_len=MAX_LEN, max_num_seqs=8)
SIZES = (StepSize(4, 4, chunks=False), StepSize(40, 3, chunks=True))

# What waits for the device: a number that is brought to the host, and shapes that depend on data.
WAITING = ("_local_scalar_dense", "item", "nonzero", "masked_select", "unique", "bincount")
# What a program may call. Views are free.
OURS = {"mm.out", "mm.dtype_out", "addmm.out", "addmm_.default"}
VIEWS = {"slice.Tensor", "view.default", "select.int", "as_strided.default", "detach.default"}


class Watch(TorchDispatchMode):
    """Counts the calls of torch's operators."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func).removeprefix("aten.")
        if name.startswith("index.") and any(
            isinstance(one, torch.Tensor) and one.dtype == torch.bool for one in args[1]
        ):
            name = "nonzero (a mask)"
        self.calls[name] += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def _without_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(GridExecutor, "__call__", lambda *_, **__: None)
    monkeypatch.setattr(gpu_forward, "_verify", lambda *_: 0.0)
    return


def watched(name: str, size: StepSize, **changes: Any) -> tuple[GpuForward, Counter[str]]:
    """A step of padding, as it is captured, and what it called."""
    model = tiny_model(name, **changes)
    shape = trace(type(model), model.config, model.dtype).shape
    forward = make_gpu_program(model, CONFIG, shape)
    one_block = replace(CONFIG, num_blocks=1)
    forward.attach(*(forward.storage(part) for part in cache_shapes(one_block, shape)))
    layout = forward.layout(size, 0)
    inputs = layout.over(torch.full((layout.num_words,), -1, dtype=torch.int32))
    watch = Watch()
    with torch.inference_mode(), watch:
        forward.run(inputs)
    return forward, watch.calls


@pytest.mark.parametrize("size", SIZES, ids=["decodes", "mixed"])
@pytest.mark.parametrize("name", sorted(SERVED))
def test_nothing_waits_and_nothing_of_ours_allocates(name: str, size: StepSize) -> None:
    forward, calls = watched(name, size)
    assert not [call for call in calls if call.startswith(WAITING)]
    # What modules of the model allocate comes from the memory of the graphs.
    assert forward.opaque or calls.keys() <= OURS | VIEWS


@pytest.mark.parametrize("way", ["eager", "grouped_mm"])
def test_experts_that_torch_computes_wait_where_they_loop(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers has such a loop, too; with it there would be no graphs."""
    monkeypatch.setattr(gpu_forward, "grouped_products_wait", lambda *_: False)
    forward, calls = watched("qwen3_moe", SIZES[0], experts_implementation=way)
    assert forward.opaque
    assert bool([call for call in calls if call.startswith(WAITING)]) == (way == "eager")


@pytest.mark.parametrize(
    ("capability", "dtype", "waits"),
    [
        ((8, 0), torch.bfloat16, True),
        ((8, 9), torch.bfloat16, True),
        ((9, 0), torch.bfloat16, False),
        ((9, 0), torch.float16, True),
        ((9, 0), torch.float32, True),
        ((10, 0), torch.bfloat16, False),
        ((12, 0), torch.bfloat16, True),
    ],
)
def test_experts_are_ours_where_torchs_products_wait(
    capability: tuple[int, int], dtype: torch.dtype, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert gpu_forward.grouped_products_wait(torch.device("cuda"), dtype) == waits
