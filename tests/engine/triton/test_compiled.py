"""The kernels compile for GPUs that are not here, and fit into their registers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("triton")

from tests.support.kernel_variants import ATTENTION, BESIDE, PRODUCTS, SAMPLING, VARIANTS

Usage = dict[str, dict[str, Any]]


# The two others take as long as a minute, so that most of their kernels are in the long tests.
OTHERS = (80, 100)
MAIN = ("decode", "prefill", "choose", "norm", "rotation", "gated")
# Where kernels can overlap, and some that do it each in its way.
OVERLAPPING = (90, 100)
OVERLAPPED = (
    *("decode", "norm", "rotation", "gated with biases", "gather"),
    *("product of 1, 4 x 1024", "product of 8, gated, 32 x 128"),
)
# These read weights or biases while the kernel before still runs, and products have the cache fetch
# their matrix. The rest read nothing so early.
EARLY = {
    "norm",
    "norm of heads",
    "norm of 896",
    "norm of wide rows",
    "gated with biases",
}


def compiled(capability: int, *names: str, overlap: bool = False) -> Usage:
    """What variants use on a GPU of this capability; all of them if none is named."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    module = "tests.support.compiled_kernels"
    options = ("--overlap",) if overlap else ()
    command = (sys.executable, "-m", module, *options, str(capability), *names)
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    usage: Usage = json.loads(result.stdout)
    return usage


@pytest.fixture(
    scope="module",
    params=[90, *(pytest.param(other, marks=pytest.mark.long) for other in OTHERS)],
)
def kernels(request: pytest.FixtureRequest) -> Usage:
    """What each variant uses on GPUs of one capability."""
    usage = compiled(request.param)
    assert usage.keys() == VARIANTS.keys()
    return usage


@pytest.mark.parametrize("capability", OTHERS)
def test_the_main_kernels_fit_into_other_gpus(capability: int) -> None:
    kernels = compiled(capability, *MAIN)
    assert set(kernels) == set(MAIN)
    test_nothing_is_spilled(kernels)
    assert all(kernels[name]["copies"] for name in ("decode", "prefill"))


def test_nothing_is_spilled(kernels: Usage) -> None:
    # Without tensor cores, a thread has more products under way than numbers fit into registers.
    most = {"exact decode": 512, "exact prefill": 1024}
    assert {name for name, one in kernels.items() if one["spilled"] > most.get(name, 0)} == set()


def test_keys_are_copied_beside_the_products(kernels: Usage) -> None:
    assert all(kernels[name]["copies"] for name in ("decode", "prefill", "wide decode"))
    # Three programs of four warps fit on a multiprocessor, and two of eight.
    assert kernels["decode"]["registers"] <= 168
    assert kernels["prefill"]["registers"] <= 255
    assert kernels["decode"]["shared"] <= 48 * 1024
    # That is what a multiprocessor has for one program, where it has least (sm_86, sm_89, sm_120).
    assert all(kernels[name]["shared"] <= 99 * 1024 for name in ATTENTION)


@pytest.mark.parametrize("name", BESIDE)
def test_matrices_move_in_accesses_of_16_bytes(kernels: Usage, name: str) -> None:
    assert kernels[name]["wide_loads"]
    assert kernels[name]["wide_stores"]
    # With 64 registers each, a multiprocessor holds half as many threads as it can at most. A row
    # of 16,384 numbers has one to itself.
    assert kernels[name]["registers"] <= (128 if name == "norm of wide rows" else 64)


def test_a_multiprocessor_has_room_for_whoever_chooses_a_token(kernels: Usage) -> None:
    # Sixteen warps of 128 registers are all that there are.
    assert all(kernels[name]["registers"] <= 128 for name in SAMPLING)


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_products_matrix_is_read_in_many_accesses_at_once(kernels: Usage, name: str) -> None:
    found = kernels[name]
    if name.startswith("product of 1"):
        assert found["wide_loads"] >= 3
        # Three programs of four warps fit on a multiprocessor.
        assert found["registers"] <= 168
    else:
        # Two accesses of each thread in every stage but the last.
        assert found["copies"] >= 8
        # Two programs fit on a multiprocessor, or one with gate and up.
        assert found["shared"] <= (113 if "gated" in name else 64) * 1024
        assert found["registers"] <= 128


def test_kernels_that_do_not_overlap_know_nothing_of_it(kernels: Usage) -> None:
    assert all(one["until_wait"] == {"ptx": []} for one in kernels.values())


def check_overlap(kernels: Usage) -> None:
    """Each lets the next one start first. Then it waits, in all of its programs and before it
    writes, and reads nothing before but what no launch writes.
    """
    for name, one in kernels.items():
        assert one["until_wait"].keys() == {"ptx", "sass"}
        for code, (first, *early, last) in one["until_wait"].items():
            assert (first, last) == ("lets next start", "waits"), (name, code)
            allowed = {"loads"} if name in EARLY else {"fetches"} if name in PRODUCTS else set()
            assert set(early) == allowed, (name, code)


def test_main_kernels_that_overlap_wait_for_the_one_before() -> None:
    kernels = compiled(90, *OVERLAPPED, overlap=True)
    assert set(kernels) == set(OVERLAPPED)
    check_overlap(kernels)


@pytest.mark.long
@pytest.mark.parametrize("capability", OVERLAPPING)
def test_kernels_that_overlap_wait_for_the_one_before(capability: int) -> None:
    kernels = compiled(capability, overlap=True)
    assert kernels.keys() == VARIANTS.keys()
    check_overlap(kernels)
    test_nothing_is_spilled(kernels)
    for name in BESIDE:
        test_matrices_move_in_accesses_of_16_bytes(kernels, name)
    test_keys_are_copied_beside_the_products(kernels)
    test_a_multiprocessor_has_room_for_whoever_chooses_a_token(kernels)
