"""Products of codes in tiles, emulated where the processor has none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.engine.native.test_sanitizers import (
    AVX512,
    HERE,
    SHIPPED,
    SOURCES,
    compiler,
)

OPTIONS = ("-std=c++20", "-Wno-psabi", "-O1", *SHIPPED[1:], *AVX512, f"-I{SOURCES}")


def compiled(folder: Path, level: str, *options: str) -> Path:
    target = folder / f"{level}.o"
    command = [compiler(), *OPTIONS, f"-DLEVEL={level}", *options, "-o", target]
    subprocess.run([*command, "-c", SOURCES / "coded_level.cpp"], check=True)
    return target


@pytest.mark.needs("avx512")  # what is compared
def test_tiles_of_bytes_give_what_vectors_do(tmp_path: Path) -> None:
    """To the bit, whatever the group: a row's tokens do not depend on how many are beside it."""
    program = tmp_path / "compare"
    objects = (
        compiled(tmp_path, "amx", "-include", str(HERE / "emulated_tiles.hpp")),
        compiled(tmp_path, "avx512"),
    )
    sources = (HERE / "compare_tiles.cpp", SOURCES / "scratch.cpp")
    subprocess.run([compiler(), *OPTIONS, *sources, *objects, "-o", program], check=True)
    done = subprocess.run([program, "200"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr
