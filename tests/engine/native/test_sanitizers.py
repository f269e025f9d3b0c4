"""The kernels and their pool, without Python, under the compiler's sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.native import EACH_LEVEL, LEVELS, kernels_or_skip

kernels_or_skip()

HERE = Path(__file__).parent
SOURCES = HERE.parents[2] / "engine" / "native" / "src"

# As CMakeLists.txt has them.
AVX512 = ("-march=x86-64-v4", "-mavx512bf16", "-mavx512vnni", "-mprefer-vector-width=512")
INSTRUCTIONS = {
    "avx2": ("-march=x86-64-v3",),
    "avxvnni": ("-march=x86-64-v3", "-mavxvnni"),
    "avx512": AVX512,
    "amx": (*AVX512, "-mamx-tile", "-mamx-bf16", "-mamx-int8"),
}
SHIPPED = ("-O3", "-fno-math-errno", "-fno-trapping-math")
MEMORY = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
THREADS = ("-fsanitize=thread",)

Options = tuple[str, ...]


def compiler() -> str:
    found = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    return found or pytest.skip("no C++ compiler here")


def build(folder: Path, name: str, sources: list[Path], *options: str) -> Path:
    """Compile an executable, a source to a process, as many at a time as there are cores."""
    command = [compiler(), "-std=c++20", "-g1", "-pthread", "-Wno-psabi", f"-I{SOURCES}", *options]
    objects = [folder / f"{source.stem}.o" for source in sources]
    running = [
        subprocess.Popen([*command, "-c", source, "-o", target], stderr=subprocess.PIPE, text=True)
        for source, target in zip(sources, objects, strict=True)
    ]
    for process in running:
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    subprocess.run([*command, *objects, "-o", folder / name], check=True)
    return folder / name


def run(program: Path, *arguments: int) -> None:
    done = subprocess.run(
        [program, *map(str, arguments)],
        env=os.environ | {"TSAN_OPTIONS": "halt_on_error=1"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr[-6_000:]


def sanitized_kernels(folder: Path, level: str, *options: str) -> Path:
    sources = [
        SOURCES / f"{name}.cpp"
        for name in ("level", "pool", "scratch", "cpu", "attention_plan", "coded_memory", "experts")
    ]
    options = (*options, f"-DLEVEL={level}", *INSTRUCTIONS[level])
    return build(folder, "kernels", [HERE / "sanitize_kernels.cpp", *sources], *options)


def sanitized_pool(folder: Path, *options: str) -> Path:
    sources = [HERE / "sanitize_pool.cpp", SOURCES / "pool.cpp", SOURCES / "scratch.cpp"]
    return build(folder, "pool", sources, "-O1", *options)


def test_the_best_level_stays_within_its_memory(tmp_path: Path) -> None:
    run(sanitized_kernels(tmp_path, LEVELS[0], "-O1", *MEMORY), 0, 150)


@pytest.mark.parametrize("options", [MEMORY, THREADS], ids=["memory", "threads"])
def test_the_pool_under_callers_that_hurry(tmp_path: Path, options: Options) -> None:
    run(sanitized_pool(tmp_path, *options), 0, 1_000)


@pytest.mark.long
@pytest.mark.parametrize("level", EACH_LEVEL)
@pytest.mark.parametrize("options", [("-O1", *MEMORY), SHIPPED], ids=["memory", "as shipped"])
def test_each_level_stays_within_its_memory(tmp_path: Path, level: str, options: Options) -> None:
    run(sanitized_kernels(tmp_path, level, *options), 1_000, 20_000)


@pytest.mark.long
@pytest.mark.parametrize("level", EACH_LEVEL)
def test_pieces_of_an_operation_do_not_meet(tmp_path: Path, level: str) -> None:
    run(sanitized_kernels(tmp_path, level, "-O1", *THREADS), 1_000, 2_000)


@pytest.mark.long
def test_the_pool_for_a_while(tmp_path: Path) -> None:
    run(sanitized_pool(tmp_path, *THREADS), 1, 200_000)


@pytest.mark.long
@pytest.mark.parametrize("level", EACH_LEVEL)
def test_a_level_shares_no_function_with_others(tmp_path: Path, level: str) -> None:
    """The linker keeps one of equal inline functions, perhaps one that other processors lack."""
    target = tmp_path / "level.o"
    command = [compiler(), "-std=c++20", "-Wno-psabi", *SHIPPED]
    command += [f"-DLEVEL={level}", *INSTRUCTIONS[level]]
    subprocess.run(
        [*command, "-c", SOURCES / "level.cpp", "-o", target],
        check=True,
    )
    listing = subprocess.run(
        ["nm", "--demangle", "--defined-only", target], capture_output=True, text=True, check=True
    )
    # W and V are merged; u is too, for the whole process. A pointer to the unwinder does no harm.
    lines = [line.split(maxsplit=2) for line in listing.stdout.splitlines()]
    merged = [name for _, kind, name in lines if kind in "WVu" and not name.startswith("DW.ref.")]
    assert [name for name in merged if f"batchdeck::{level}::" not in name] == []
