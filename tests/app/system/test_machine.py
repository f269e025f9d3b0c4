from __future__ import annotations

from pathlib import Path

import pytest

from app.process.columns import align
from app.system.machine import cpu_features, gpu_memory, host_memory, memory_of, num_cores
from tests.support.nvml import Gpu, install, refuse


@pytest.mark.parametrize(
    ("text", "features"),
    [
        (
            "processor\t: 0\nflags\t\t: fpu avx2 amx_bf16 avx512_bf16 avx2x\n",
            "avx2 avx512_bf16 amx_bf16",
        ),
        ("processor\t: 0\nFeatures\t: fp asimd bf16 sve\n", "asimd bf16 sve"),
        ("flags\t: fpu\n", ""),
    ],
    ids=["x86", "arm", "old"],
)
def test_features_of_the_processor(text: str, features: str, tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text(text)
    assert cpu_features(info) == tuple(features.split())


def test_a_system_that_does_not_tell(tmp_path: Path) -> None:
    assert cpu_features(tmp_path / "nothing") is None
    (tmp_path / "info").write_text("processor : 0\n")
    assert cpu_features(tmp_path / "info") is None


def test_this_machine_has_something() -> None:
    memory = host_memory()
    assert 0 < memory.free <= memory.total
    assert memory_of(None).free > 0
    assert num_cores() >= 1


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a small GPU and a large one."""
    install(monkeypatch, Gpu("GPU-1", total=24), Gpu("GPU-2", total=80))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("two_gpus")
def test_a_model_is_loaded_to_the_emptiest_gpu_unless_one_is_named() -> None:
    for device in ("cuda", "cuda:0", "cuda:9", "abacus"):
        assert memory_of(device).uuid == "GPU-1"
    assert memory_of(None).uuid == memory_of("auto").uuid == "GPU-2"
    assert memory_of("cuda:1").uuid == "GPU-2"
    assert memory_of("cuda:1").free == 80 - 31
    assert memory_of("cpu").name == "host"


@pytest.mark.usefixtures("two_gpus")
def test_gpus_that_are_hidden_take_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert memory_of(None).uuid == memory_of("cuda:0").uuid == "GPU-2"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-2,GPU-1")
    assert memory_of("cuda:1").uuid == "GPU-1"
    assert memory_of(None).uuid == "GPU-2"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert memory_of(None).name == memory_of("cuda").name == "host"
    assert len(gpu_memory()) == 2


def test_instances_stand_in_place_of_a_gpu_that_is_partitioned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = (Gpu("MIG-1", used=1, total=10), Gpu("MIG-2", used=2, total=20))
    install(monkeypatch, Gpu("GPU-1"), Gpu("GPU-2", instances=parts), Gpu("GPU-3"))
    found = gpu_memory()
    assert [gpu.uuid for gpu in found] == ["GPU-1", "MIG-1", "MIG-2", "GPU-3"]
    assert (found[2].total, found[2].free) == (20, 18)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-2")
    assert memory_of(None) == found[2]


def test_a_gpu_that_tells_no_memory_uses_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = ("nvmlDeviceGetMemoryInfo",)
    install(monkeypatch, Gpu("GPU-1", "NVIDIA GB10", silent=silent), Gpu("GPU-2"))
    shared, own = gpu_memory()
    assert (shared.name, shared.uuid) == ("NVIDIA GB10", "GPU-1")
    assert shared.total == host_memory().total
    assert own.total == 80


def test_a_driver_that_fails_has_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Gpu("GPU-1"), nvmlDeviceGetCount=refuse)
    assert gpu_memory() == ()


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    rows = [("name", "n"), ("a", "100"), ("long name", "2")]
    assert align(rows, numbers=(1,)) == ["name         n", "a          100", "long name    2"]
    assert align([("a", ""), ("bb", "")]) == ["a", "bb"]
