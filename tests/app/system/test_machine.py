from __future__ import annotations

from pathlib import Path

import pytest

from app.process.columns import align
from app.system.machine import cpu_features, host_memory, most_free_memory, num_cores


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
    assert most_free_memory() > 0
    assert num_cores() >= 1


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    rows = [("name", "n"), ("a", "100"), ("long name", "2")]
    assert align(rows, numbers=(1,)) == ["name         n", "a          100", "long name    2"]
    assert align([("a", ""), ("bb", "")]) == ["a", "bb"]
