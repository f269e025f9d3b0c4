"""The kernels and their pool, without Python, under the compiler's sanitizers."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
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
# Of executables whose sources have changed since.
KEPT_SECONDS = 7 * 24 * 3600

Options = tuple[str, ...]


def compiler() -> str:
    found = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    return found or pytest.skip("no C++ compiler here")


def build(name: str, sources: Sequence[tuple[Path, Options]], *options: str) -> Path:
    """An executable of sources, each with options of its own. It is compiled when a source or the
    compiler has changed: 24 s of a processor for all kernels. A source is compiled by a process, as
    many at a time as there are cores.
    """
    command = [compiler(), "-std=c++20", "-g1", "-pthread", "-Wno-psabi", f"-I{SOURCES}", *options]
    version = subprocess.run([command[0], "--version"], check=True, capture_output=True).stdout
    read = [*sorted(SOURCES.glob("*pp")), *sorted(HERE.glob("*pp"))]
    digest = hashlib.sha256(
        repr([command, sources, version, *(one.read_bytes() for one in read)]).encode()
    )
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    program = cache / "batchdeck-tests" / f"{name}-{digest.hexdigest()[:20]}"
    if program.exists():
        return program
    program.parent.mkdir(parents=True, exist_ok=True)
    for old in program.parent.glob(f"{name}-*"):
        if time.time() - old.stat().st_mtime > KEPT_SECONDS:
            old.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=program.parent) as folder:
        objects = [Path(folder) / f"{number}.o" for number in range(len(sources))]
        running = [
            subprocess.Popen(
                [*command, *own, "-c", source, "-o", target], stderr=subprocess.PIPE, text=True
            )
            for (source, own), target in zip(sources, objects, strict=True)
        ]
        for process in running:
            _, errors = process.communicate()
            assert process.returncode == 0, errors
        linked = Path(folder) / name
        subprocess.run([*command, *objects, "-o", linked], check=True)
        return linked.rename(program)


def run(program: Path, *arguments: int) -> None:
    done = subprocess.run(
        [program, *map(str, arguments)],
        env=os.environ | {"TSAN_OPTIONS": "halt_on_error=1"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr[-6_000:]


def alike(sources: list[Path]) -> list[tuple[Path, Options]]:
    return [(source, ()) for source in sources]


def sanitized_kernels(level: str, *options: str) -> Path:
    sources = [
        SOURCES / f"{name}.cpp"
        for name in ("level", "pool", "scratch", "cpu", "attention_plan", "coded_memory", "experts")
    ]
    options = (*options, f"-DLEVEL={level}", *INSTRUCTIONS[level])
    return build("kernels", alike([HERE / "sanitize_kernels.cpp", *sources]), *options)


def sanitized_pool(*options: str) -> Path:
    sources = [HERE / "sanitize_pool.cpp", SOURCES / "pool.cpp", SOURCES / "scratch.cpp"]
    return build("pool", alike(sources), "-O1", *options)


def test_the_best_level_stays_within_its_memory() -> None:
    run(sanitized_kernels(LEVELS[0], "-O1", *MEMORY), 0, 150)


@pytest.mark.parametrize("options", [MEMORY, THREADS], ids=["memory", "threads"])
def test_the_pool_under_callers_that_hurry(options: Options) -> None:
    run(sanitized_pool(*options), 0, 1_000)


@pytest.mark.long
@pytest.mark.parametrize("level", EACH_LEVEL)
@pytest.mark.parametrize("options", [("-O1", *MEMORY), SHIPPED], ids=["memory", "as shipped"])
def test_each_level_stays_within_its_memory(level: str, options: Options) -> None:
    run(sanitized_kernels(level, *options), 1_000, 20_000)


@pytest.mark.long
@pytest.mark.parametrize("level", EACH_LEVEL)
def test_pieces_of_an_operation_do_not_meet(level: str) -> None:
    run(sanitized_kernels(level, "-O1", *THREADS), 1_000, 2_000)


@pytest.mark.long
def test_the_pool_for_a_while() -> None:
    run(sanitized_pool(*THREADS), 1, 200_000)


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
