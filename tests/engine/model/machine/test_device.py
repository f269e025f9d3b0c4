"""Device, type and free memory, on machines that are described here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from engine.api.config import EngineConfig
from engine.api.errors import DeviceLostError, InvalidConfigError
from engine.cache.host_store import HostMemoryError
from engine.model.machine import device as device_module
from engine.model.machine.device import (
    default_share,
    free_memory,
    gpu_uuid,
    is_out_of_memory,
    loading_dtype,
    noticing_loss,
    pick_device,
    pick_dtype,
    with_swap,
)
from engine.model.machine.host import HostMemory
from tests.support.nvml import Gpu, install

CPU = torch.device("cpu")
GPU = torch.device("cuda", 1)
Machine = Callable[[int], None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Sets the number of GPUs, of which the driver tells nothing."""
    install(monkeypatch)

    def set_gpus(count: int) -> None:
        see(monkeypatch, [(8, 0)] * count)

    return set_gpus


def see(
    monkeypatch: pytest.MonkeyPatch,
    capabilities: Sequence[tuple[int, int]],
    made_for: str = "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120 compute_120",
    broken: Collection[int] = (),
) -> None:
    """Let torch, a build for CUDA 13, see these GPUs.

    Args:
        broken: those that do not compute.
    """
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(capabilities))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(capabilities))
    monkeypatch.setattr(torch.cuda, "get_arch_list", made_for.split)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda gpu: f"NVIDIA {gpu.index}")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda gpu: capabilities[gpu.index])
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(device_module, "gpu_uuid", lambda gpu: f"GPU-{gpu.index}")
    monkeypatch.setattr(
        device_module,
        "_why_broken",
        lambda gpu: f"{gpu} does not compute" if gpu.index in broken else "",
    )


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


def driver_with(monkeypatch: pytest.MonkeyPatch, *used: int, **changes: object) -> None:
    """A driver of GPUs of 80 bytes each, of which so many are used."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpus = [Gpu(f"GPU-{number}", used=some) for number, some in enumerate(used)]
    install(monkeypatch, *gpus, **changes)


H100, PASCAL, ADA, THOR = (9, 0), (6, 1), (8, 9), (12, 1)


@pytest.mark.parametrize(
    ("used", "capabilities", "broken", "expected"),
    [
        ((50, 10, 20), [H100] * 3, (), "cuda:1"),
        ((10, 10), [H100] * 2, (), "cuda:0"),
        ((50, 0), [ADA, PASCAL], (), "cuda:0"),
        ((50, 0, 20), [ADA, THOR, ADA], (1,), "cuda:2"),
        ((50, 0), [ADA, THOR], (), "cuda:1"),
        ((), [H100] * 2, (), "cuda:0"),
    ],
)
def test_auto_is_the_emptiest_gpu_that_works(
    monkeypatch: pytest.MonkeyPatch,
    used: tuple[int, ...],
    capabilities: list[tuple[int, int]],
    broken: tuple[int, ...],
    expected: str,
) -> None:
    driver_with(monkeypatch, *used)
    see(monkeypatch, capabilities, broken=broken)
    assert str(pick_device("auto")) == expected


def test_a_gpu_that_torch_has_no_kernels_for_is_refused_and_passed_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    driver_with(monkeypatch, 0)
    see(monkeypatch, [PASCAL])
    reason = (
        f"torch {torch.__version__} has no kernels for NVIDIA 0 (sm_61), only for sm_75, sm_80, "
        "sm_86, sm_90, sm_100, sm_120, compute_120; install a build that has: pip install "
        "--force-reinstall torch --index-url https://download.pytorch.org/whl/cu126"
    )
    assert refusal("cuda") == f"device is 'cuda', but {reason}"
    assert pick_device("auto") == CPU
    assert caplog.messages == [f"the processor computes, although there is a GPU: {reason}"]
    see(monkeypatch, [THOR], "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90")
    assert refusal("cuda").endswith("install a build that has: pip install --force-reinstall torch")


@pytest.mark.parametrize(
    ("made_for", "capability", "runs"),
    [
        ("sm_86", (8, 9), True),
        ("sm_89", (8, 6), False),
        ("sm_80", (9, 0), False),
        ("compute_80", (9, 0), True),
        ("compute_90", (8, 0), False),
        ("sm_90a", (9, 0), True),
        ("sm_120f", (12, 1), True),
        ("sm_120a", (12, 1), False),
        ("", (9, 4), True),
    ],
)
def test_which_gpus_a_build_is_for(
    monkeypatch: pytest.MonkeyPatch, made_for: str, capability: tuple[int, int], runs: bool
) -> None:
    driver_with(monkeypatch, 0)
    see(monkeypatch, [capability], made_for)
    assert (pick_device("auto") != CPU) is runs


@pytest.mark.parametrize(
    ("built", "version", "told"),
    [
        (
            "13.0",
            12040,
            "NVIDIA's driver knows CUDA up to 12.4, and torch {} is built for CUDA 13.0; update "
            "the driver, or install a build for CUDA 12: pip install --force-reinstall torch "
            "--index-url https://download.pytorch.org/whl/cu126",
        ),
        (
            "13.0",
            11040,
            "NVIDIA's driver knows CUDA up to 11.4, and torch {} is built for CUDA 13.0; update "
            "the driver",
        ),
        (
            None,
            12080,
            "torch {} is a build without CUDA; install one with it: pip install --force-reinstall "
            "torch --index-url https://download.pytorch.org/whl/cu126",
        ),
        (
            None,
            13000,
            "torch {} is a build without CUDA; install one with it: pip install --force-reinstall "
            "torch",
        ),
        ("13.2", 13000, "torch {} cannot start CUDA: RuntimeError: CUDA unknown error"),
    ],
)
def test_a_torch_that_sees_no_gpu_is_told_with_what_helps(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    built: str | None,
    version: int,
    told: str,
) -> None:
    def init() -> None:
        raise RuntimeError("CUDA unknown error")

    see(monkeypatch, [])
    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.setattr(torch.cuda, "init", init)
    driver_with(monkeypatch, 0, nvmlSystemGetCudaDriverVersion_v2=lambda: version)
    told = told.format(torch.__version__)
    assert pick_device("auto") == CPU
    assert caplog.messages == [f"the processor computes, although there is a GPU: {told}"]
    assert refusal("cuda") == f"device is 'cuda', but torch sees no GPU here: {told}"
    caplog.clear()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert pick_device("auto") == CPU
    driver_with(monkeypatch)
    assert pick_device("auto") == CPU
    assert caplog.messages == []


def test_a_gpu_without_memory_is_picked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever loads a model says what is free; another failure passes it over."""
    raised: list[Exception] = [torch.OutOfMemoryError("CUDA out of memory")]

    def ones(*_: object, **__: object) -> None:
        raise raised[0]

    monkeypatch.setattr(torch, "ones", ones)
    assert device_module._why_broken(GPU) == ""
    raised[0] = torch.AcceleratorError("CUDA error: device not ready")
    assert device_module._why_broken(GPU) == (
        "cuda:1 does not compute: AcceleratorError: CUDA error: device not ready"
    )


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
    monkeypatch.setattr(device_module, "host_memory", lambda: HostMemory(9000, 5000))
    assert free_memory(CPU) == 5000


@pytest.mark.parametrize("is_asked", [False, True])
def test_host_memory_that_is_refused_costs_the_swap_and_not_the_start(
    caplog: pytest.LogCaptureFixture, is_asked: bool
) -> None:
    tried: list[int] = []

    def make(envelope: EngineConfig) -> str:
        tried.append(envelope.num_host_blocks)
        if envelope.num_host_blocks:
            raise HostMemoryError(
                "4 bytes of host memory for swapping cannot be allocated: refused"
            )
        return "runner"

    envelope = EngineConfig(num_blocks=8, max_model_len=64, num_host_blocks=5)
    if is_asked:
        with pytest.raises(HostMemoryError):
            with_swap(make, envelope, is_asked=True)
        assert tried == [5]
        return
    runner, without = with_swap(make, envelope, is_asked=False)
    assert (runner, without) == ("runner", replace(envelope, num_host_blocks=0))
    assert tried == [5, 0]
    assert caplog.messages == [
        "preempted requests are computed again, and not swapped: 4 bytes of host memory for "
        "swapping cannot be allocated: refused"
    ]
    assert with_swap(make, without, is_asked=False) == ("runner", without)
    assert tried == [5, 0, 0]


def test_a_host_keeps_more_for_others() -> None:
    assert default_share(CPU) < default_share(GPU) < 1
