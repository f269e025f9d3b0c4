"""The marker `needs`, and what becomes of skips, by runs of pytest with tests/conftest.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import pytest

def test_of_all_machines(): pass

@pytest.mark.needs("avx512")
@pytest.mark.parametrize("number", [1, 2])
def test_of_some_machines(number): pass

@pytest.mark.needs("avx512")
def test_that_nobody_asks_for(): pass
"""


def said(folder: Path, tests: dict[str, str], *options: str) -> list[str]:
    """The lines of a run as on a machine with AVX2 alone, where no test may be skipped."""
    for name, text in tests.items():
        (folder / f"test_{name}.py").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    command += ["-qc", os.devnull, f"--rootdir={folder}", *options, str(folder)]
    limits = {"BATCHDECK_KERNELS": "avx2", "BATCHDECK_NO_SKIP": "1"}
    root = Path(__file__).parents[1]
    done = subprocess.run(
        command, cwd=root, env={**os.environ, **limits}, capture_output=True, text=True
    )
    return (done.stdout + done.stderr).splitlines()


@pytest.mark.needs("avx2")
@pytest.mark.parametrize("options", [(), ("-n2",)], ids=["one process", "several"])
def test_tests_of_other_machines_are_left_out_and_counted(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    lines = said(tmp_path, {"it": TESTS}, "-k", "all_machines or some_machines", *options)
    assert [line for line in lines if "not run" in line] == ["not run here, for want of AVX-512: 2"]
    assert lines[-1].startswith("1 passed")


@pytest.mark.needs("avx2")
def test_skips_for_other_reasons_fail(tmp_path: Path) -> None:
    tests = {
        "one": "import pytest\ndef test_it(): pytest.skip('no wish')",
        "library": "import pytest\npytest.importorskip('no_such_library')",
        "more": "import pytest\npytest.skip('for want of AVX2', allow_module_level=True)",
    }
    lines = said(tmp_path, tests, "--continue-on-collection-errors")
    assert lines[-1].startswith("1 failed, 1 skipped, 1 error in ")


def test_a_need_that_is_not_known_is_refused(tmp_path: Path) -> None:
    tests = {"it": "import pytest\n@pytest.mark.needs('avx51')\ndef test_it(): pass"}
    known = "amx, avx512, avxvnni, avx2, gpu"
    told = f"ERROR: test_it.py::test_it: needs('avx51',) must name one of {known}"
    assert told in said(tmp_path, tests)
