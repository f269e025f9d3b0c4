"""Products of codes in tiles, emulated where the processor has none."""

from __future__ import annotations

import subprocess

import pytest

from tests.engine.native.test_sanitizers import AVX512, HERE, SHIPPED, SOURCES, build


@pytest.mark.needs("avx512")  # what is compared
def test_tiles_of_bytes_give_what_vectors_do() -> None:
    """To the bit, whatever the group: a row's tokens do not depend on how many are beside it."""
    emulated = ("-DLEVEL=amx", "-include", str(HERE / "emulated_tiles.hpp"))
    sources = (
        (SOURCES / "coded_level.cpp", emulated),
        (SOURCES / "coded_level.cpp", ("-DLEVEL=avx512",)),
        (HERE / "compare_tiles.cpp", ()),
        (SOURCES / "scratch.cpp", ()),
    )
    program = build("tiles", sources, "-O1", *SHIPPED[1:], *AVX512)
    done = subprocess.run([program, "200"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr
