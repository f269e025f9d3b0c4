from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import engine.native
from engine.api.errors import InvalidConfigError

ROOT = Path(__file__).parents[3]

# A compiler that does not know tiles.
OLD_COMPILER = """#!/bin/sh
for option in "$@"; do
    if [ "$option" = -mamx-tile ]; then echo "unrecognized option" >&2; exit 1; fi
done
exec c++ "$@"
"""
# The extension cannot be found, or breaks; its folder is the last of the arguments.
WITHOUT = """
import sys
import engine.native
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name == "engine.native._native":
            raise {error}
sys.meta_path.insert(0, Blocked())
engine.native.__path__[:] = sys.argv[1:]
print(engine.native.kernels(), engine.native.why_not(), sep="|")
assert "torch" not in sys.modules
"""
ABSENT = 'ModuleNotFoundError("No module", name="engine.native._native")'


def configure(folder: Path, *options: str, **env: str) -> str:
    """Configure the build; what it says of kernels that it leaves out."""
    cmake = shutil.which("cmake", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert cmake, "CMake is not installed: the extra 'dev' has it"
    subprocess.run(
        [cmake, "-S", ROOT, "-B", folder, f"-DPython_EXECUTABLE={sys.executable}", *options],
        env=os.environ | env,
        check=True,
        capture_output=True,
    )
    return (folder / "left_out.txt").read_text()


def without(error: str, *folders: Path, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(error=error), *folders],
        cwd=ROOT,
        env={name: os.environ[name] for name in os.environ if name != engine.native.VARIABLE} | env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    kernels, _, reason = done.stdout.strip().partition("|")
    assert kernels == "None"
    return reason


def test_without_a_compiler_the_kernels_are_left_out(tmp_path: Path) -> None:
    said = configure(tmp_path, CXX="/nonexistent")
    assert said.startswith("there was no C++ compiler when batchdeck was installed; install g++")
    assert without(ABSENT, tmp_path) == said.strip()


def test_with_an_old_compiler_the_kernels_are_left_out(tmp_path: Path) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text(OLD_COMPILER)
    compiler.chmod(0o755)
    said = configure(tmp_path / "build", CXX=str(compiler))
    assert " does not know C++20 or AMX; install g++ 12 or newer" in said


def test_without_headers_the_kernels_are_left_out(tmp_path: Path) -> None:
    said = configure(tmp_path, "-DPython_INCLUDE_DIR=/nonexistent")
    assert said.startswith("Python's headers were not there when batchdeck was installed; install")


def test_on_another_processor_the_kernels_are_left_out(tmp_path: Path) -> None:
    said = configure(tmp_path, "-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=riscv64")
    assert said == "they are written for Linux on x86-64, and this is Linux on riscv64\n"


def test_a_checkout_that_was_never_built(tmp_path: Path) -> None:
    assert without(ABSENT, tmp_path) == "they have not been built here; install batchdeck again"


def test_an_extension_that_does_not_load(tmp_path: Path) -> None:
    (tmp_path / "left_out.txt").write_text("of an earlier build\n")
    reason = without('ImportError("undefined symbol: x")', tmp_path)
    assert reason == "the extension does not load: undefined symbol: x"


def test_the_kernels_can_be_switched_off(tmp_path: Path) -> None:
    reason = without(ABSENT, tmp_path, BATCHDECK_KERNELS="off")
    assert reason == "BATCHDECK_KERNELS=off switches them off"


class Extension:
    """The extension, as `engine.native` calls it, on a processor with these levels."""

    def __init__(self, *levels: str) -> None:
        self._levels = list(levels)
        self.level = ""
        self.threads = 0

    def levels(self) -> list[str]:
        return self._levels

    def choose_level(self, name: str) -> None:
        self.level = name

    def set_threads(self, count: int) -> None:
        self.threads = count


@pytest.fixture
def extension(monkeypatch: pytest.MonkeyPatch) -> Extension:
    """An extension that is not loaded yet, on a processor without AMX."""
    fake = Extension("avx512", "avx2")
    monkeypatch.setitem(sys.modules, "engine.native._native", fake)
    monkeypatch.setattr(engine.native, "_load", engine.native._load.__wrapped__)
    monkeypatch.delenv(engine.native.VARIABLE, raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return fake


def test_the_best_level_and_every_usable_core_is_taken(extension: Extension) -> None:
    found: object = engine.native.kernels()
    assert found is extension
    assert engine.native.why_not() == ""
    assert (extension.level, extension.threads) == ("avx512", len(os.sched_getaffinity(0)))


@pytest.mark.parametrize(
    ("limit", "threads"), [("1", 1), ("1,2", 1), ("999", 0), ("0", 0), ("many", 0)]
)
def test_openmp_limits_the_threads(
    extension: Extension, monkeypatch: pytest.MonkeyPatch, limit: str, threads: int
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", limit)
    engine.native.kernels()
    assert extension.threads == (threads or len(os.sched_getaffinity(0)))


def test_the_environment_may_name_a_lower_level(
    extension: Extension, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(engine.native.VARIABLE, "avx2")
    found: object = engine.native.kernels()
    assert found is extension
    assert extension.level == "avx2"


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("avx", "BATCHDECK_KERNELS is 'avx'; allowed are amx, avx512, avxvnni, avx2, off"),
        ("OFF", "BATCHDECK_KERNELS is 'OFF'; allowed are amx, avx512, avxvnni, avx2, off"),
        ("amx", "BATCHDECK_KERNELS is 'amx'; this processor allows avx512, avx2, off"),
    ],
)
def test_a_level_that_cannot_be_had(
    extension: Extension, monkeypatch: pytest.MonkeyPatch, value: str, told: str
) -> None:
    monkeypatch.setenv(engine.native.VARIABLE, value)
    for ask in (engine.native.kernels, engine.native.why_not):
        with pytest.raises(InvalidConfigError) as refusal:
            ask()
        assert refusal.value.message == told


def test_a_processor_without_any_level(
    extension: Extension, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "engine.native._native", Extension())
    assert engine.native.kernels() is None
    assert engine.native.why_not() == "this processor lacks AVX2"
