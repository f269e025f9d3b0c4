"""Device, type and free memory, on machines that are described here."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import psutil
import pytest
import torch

from engine.api.errors import DeviceLostError, InvalidConfigError
from engine.model import device as device_module
from engine.model.device import (
    default_share,
    free_memory,
    gpu_uuid,
    is_out_of_memory,
    loading_dtype,
    noticing_loss,
    pick_device,
    pick_dtype,
)

CPU = torch.device("cpu")
GPU = torch.device("cuda", 1)
Machine = Callable[[int], None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Sets the number of GPUs."""

    def set_gpus(count: int) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return set_gpus


@pytest.mark.parametrize(
    ("gpus", "name", "expected"),
    [
        (0, None, "cpu"),
        (0, "auto", "cpu"),
        (2, None, "cuda:0"),
        (2, "cpu", "cpu"),
        (2, "cuda", "cuda:0"),
        (2, "cuda:1", "cuda:1"),
    ],
)
def test_devices(machine: Machine, gpus: int, name: str | None, expected: str) -> None:
    machine(gpus)
    assert str(pick_device(name)) == expected


@pytest.mark.parametrize(
    ("gpus", "name", "message"),
    [
        (0, "cuda", "device is 'cuda', but torch sees no GPU here"),
        (1, "cuda:1", "device is 'cuda:1', but torch sees only cuda:0 here"),
        (2, "cuda:2", "device is 'cuda:2', but torch sees only cuda:0 to cuda:1 here"),
        (2, "cuda:255", "device is 'cuda:255', but torch sees only cuda:0 to cuda:1 here"),
        (2, "cuda:1000", "device is 'cuda:1000', but torch sees only cuda:0 to cuda:1 here"),
    ],
)
def test_gpus_that_are_not_there(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, gpus: int, name: str, message: str
) -> None:
    machine(gpus)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert refusal(name) == message
    for shown in ("", "1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
        assert refusal(name) == f"{message}; CUDA_VISIBLE_DEVICES is {shown!r}"


@pytest.mark.parametrize(
    "name", ["", "gpu", "mps", "cpu:x", "cuda:", "cuda:-1", "cuda:x", "cuda:01", "cuda:99999"]
)
def test_what_names_no_device(machine: Machine, name: str) -> None:
    machine(2)
    assert refusal(name) == f"device is {name!r}; allowed are auto, cpu, cuda and cuda:N"


def refusal(name: str) -> str:
    """Why a device cannot be had."""
    with pytest.raises(InvalidConfigError) as caught:
        pick_device(name)
    assert caught.value.param == "device"
    return caught.value.message


@pytest.mark.parametrize(
    ("name", "uuid"),
    [
        ("NVIDIA H100 80GB HBM3", "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "MIG-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77"),
    ],
)
def test_a_gpu_is_named_as_its_driver_names_it(
    monkeypatch: pytest.MonkeyPatch, name: str, uuid: str
) -> None:
    def properties(device: torch.device) -> SimpleNamespace:
        assert device == GPU
        return SimpleNamespace(name=name, uuid="5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77")

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    assert gpu_uuid(GPU) == uuid
    assert gpu_uuid(CPU) == ""


@pytest.mark.parametrize(
    ("has", "registered", "expected"),
    [
        ({"avx512_bf16": True}, "bfloat16", torch.bfloat16),
        ({"bf16": True}, "bfloat16", torch.bfloat16),
        ({"avx512_bf16": False, "avx2": True}, "bfloat16", torch.float32),
        ({"avx512_fp16": True}, "float16", torch.float32),
        ({}, "float32", torch.float32),
        ({"avx512_bf16": True}, "float32", torch.float32),
        ({"avx512_bf16": True}, "auto", torch.bfloat16),
        ({"avx2": True}, "auto", torch.float32),
    ],
)
def test_auto_type_on_a_host(
    monkeypatch: pytest.MonkeyPatch, has: dict[str, bool], registered: str, expected: torch.dtype
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: has)
    monkeypatch.setattr(device_module, "kernels", lambda: None)
    for stored in ("float32", "bfloat16", "float16"):
        assert pick_dtype(None, registered, stored, CPU) == expected
        assert pick_dtype("auto", registered, stored, CPU) == expected
        assert pick_dtype("bfloat16", registered, stored, CPU) == torch.bfloat16


@pytest.mark.parametrize(
    ("has", "loading"),
    [({"avx512_bf16": True}, torch.bfloat16), ({"avx2": True}, torch.float32)],
)
def test_kernels_compute_bfloat16_on_every_host(
    monkeypatch: pytest.MonkeyPatch, has: dict[str, bool], loading: torch.dtype
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: has)
    monkeypatch.setattr(device_module, "kernels", lambda: device_module)
    assert pick_dtype(None, "auto", "float32", CPU) == torch.bfloat16
    assert loading_dtype(torch.bfloat16, CPU) == loading
    assert loading_dtype(torch.float32, CPU) == torch.float32
    assert loading_dtype(torch.bfloat16, GPU) == torch.bfloat16


@pytest.mark.parametrize("has_bf16", [True, False])
def test_auto_type_on_a_gpu(monkeypatch: pytest.MonkeyPatch, has_bf16: bool) -> None:
    def capability(device: torch.device) -> tuple[int, int]:
        return (8, 0) if (device == GPU) == has_bf16 else (7, 5)

    monkeypatch.setattr(torch.cuda, "get_device_capability", capability)
    expected = torch.bfloat16 if has_bf16 else torch.float32
    assert pick_dtype(None, "bfloat16", "float32", GPU) == expected
    assert pick_dtype(None, "auto", "bfloat16", GPU) == expected
    assert pick_dtype(None, "auto", "float16", GPU) == torch.float16
    assert pick_dtype(None, "auto", "float32", GPU) == torch.float32


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to"), True),
        (MemoryError("Unable to allocate 8.00 GiB for an array"), True),
        (RuntimeError("a shape does not fit"), False),
    ],
)
def test_out_of_memory_on_any_side(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


@pytest.mark.parametrize(
    ("device", "is_initialized", "is_lost"),
    [(GPU, True, True), (GPU, True, False), (GPU, False, True), (CPU, True, True)],
)
def test_a_device_is_lost_if_it_fails_at_nothing(
    monkeypatch: pytest.MonkeyPatch, device: torch.device, is_initialized: bool, is_lost: bool
) -> None:
    def synchronize(asked: torch.device) -> None:
        assert asked == device
        if is_lost:
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: is_initialized)
    monkeypatch.setattr(torch.accelerator, "synchronize", synchronize)
    raised = RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered")
    with pytest.raises((RuntimeError, DeviceLostError)) as caught, noticing_loss(device):
        raise raised
    if device == GPU and is_initialized and is_lost:
        assert str(caught.value) == (
            "cuda:1 computes nothing any more: RuntimeError: Triton Error [CUDA]: an illegal "
            "memory access was encountered"
        )
        assert isinstance(caught.value, DeviceLostError)
    else:
        assert caught.value is raised


def test_free_memory_of_a_gpu_counts_what_torch_holds_unused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 9000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 300)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 100)
    assert free_memory(GPU) == 1200


def test_free_memory_of_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=5000))
    assert free_memory(CPU) == 5000


def test_a_host_keeps_more_for_others() -> None:
    assert default_share(CPU) < default_share(GPU) < 1
