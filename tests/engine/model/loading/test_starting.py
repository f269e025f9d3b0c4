"""Where the knobs start: by what a GPU computes in a step and has room for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine.api.config import EngineConfig
from engine.api.knobs import Knobs
from engine.batch.shape import ModelShape
from engine.model.loading.starting import measured, starting_knobs
from engine.simulation.devices import DEVICES, Device
from engine.simulation.shapes import named_shape

ENVELOPE = EngineConfig(
    num_blocks=256 * 64, max_model_len=8192, max_num_seqs=256, max_num_batched_tokens=2048
)
LLAMA = named_shape("llama-8b")
H100, L4 = DEVICES["h100"], DEVICES["l4"]


def started(gpu: Device | None, shape: ModelShape = LLAMA, **changes: int) -> tuple[int, int]:
    start = starting_knobs(replace(ENVELOPE, **changes), shape, gpu)  # type: ignore[arg-type]
    return start.knobs.max_num_seqs, start.knobs.max_num_batched_tokens


@pytest.mark.parametrize(
    ("gpu", "changes", "expected"),
    [
        (H100, {}, (256, 1024)),
        (H100, {"max_num_batched_tokens": 16_384}, (256, 1024)),
        (H100, {"max_num_seqs": 200}, (200, 1024)),
        (H100, {"num_blocks": 100 * 64}, (64, 2048)),
        (H100, {"num_blocks": 10}, (32, 2048)),
        (H100, {"max_model_len": 256, "num_blocks": 128 * 16}, (128, 2048)),
        (H100, {"max_num_seqs": 8, "max_num_batched_tokens": 16}, (8, 16)),
        # Its weights alone take longer than half the target, whatever the step.
        (L4, {}, (32, 512)),
        (None, {}, (32, 512)),
        (None, {"max_num_seqs": 8, "max_num_batched_tokens": 16}, (8, 16)),
    ],
)
def test_they_start_by_memory_and_by_the_time_of_a_step(
    gpu: Device | None, changes: dict[str, int], expected: tuple[int, int]
) -> None:
    assert started(gpu, **changes) == expected


def test_all_experts_are_read_by_many_tokens() -> None:
    """A mixture that reads as much as it holds is slower than one that reads what a token needs."""
    mixture = replace(LLAMA, num_params=30 * LLAMA.num_params)
    assert started(H100) != started(H100, mixture) == (32, 512)


def test_they_say_so_and_nothing_else_differs() -> None:
    start = starting_knobs(ENVELOPE, LLAMA, H100)
    same = {"max_num_seqs": 256, "max_num_batched_tokens": 1024}
    assert start.knobs == replace(Knobs(), **same)
    assert start.notes.keys() == same.keys()
    note = start.notes["max_num_seqs"]
    assert note.startswith("by this GPU, where a step of 256 decodes takes about ")
    assert start.notes["max_num_batched_tokens"].startswith("by this GPU, where a step of 1,024 to")
    assert starting_knobs(ENVELOPE, LLAMA, None).notes == {}


def test_a_device_is_measured() -> None:
    found = measured(torch.device("cpu"), torch.float32, side=32, copied=1 << 16)
    assert found is not None
    assert found.flops > 0
    assert found.bandwidth > 0


def test_one_without_memory_for_it_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def ones(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "ones", ones)
    assert measured(torch.device("cpu"), torch.float32) is None
