"""The kernels compile for GPUs that are not here, and fit into their registers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("triton")

from engine.triton.ways import SHARED_MEMORY, ways_for
from tests.support.kernel_variants import BESIDE, PRODUCTS, SAMPLING, variants

Usage = dict[str, dict[str, Any]]


# All kernels for a card take half a minute, so that those for all but one are in the long tests.
OTHERS = sorted(SHARED_MEMORY.keys() - {90})
# Those that took most of a card, beside one of each kind.
MAIN = ("decode", "prefill", "wide decode", "wide prefill", "exact wide prefill", "wide merge")
MAIN = (*MAIN, "choose", "norm", "rotation", "experts up", "many clamped experts up")
# These have their keys copied two turns ahead, everywhere but on the cards where two programs on
# a multiprocessor are worth more.
AHEAD = ("decode", "prefill", "narrow decode", "narrow prefill", "wide decode", "wide prefill")
TWO_PROGRAMS = {(86, "prefill"), (89, "prefill")}
# What may be spilled. `choose` has all registers of a multiprocessor.
SPILLED = dict.fromkeys(("choose", "choose of 262,144", "choose of 262,208"), 32)
# The load of a model leaves these out where they do not fit (`engine.model.gpu.choosing`).
OPTIONAL = {"product of 8, gated, 64 x 128"}
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


def compiled(*capabilities: int, names: Sequence[str] = (), overlap: bool = False) -> list[Usage]:
    """The usage of the named variants, or of all, on a GPU of each capability."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    module = "tests.support.compiled_kernels"
    options = ("--overlap",) if overlap else ()
    stated = ",".join(map(str, capabilities))
    command = (sys.executable, "-m", module, *options, stated, *names)
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    usages: dict[str, Usage] = json.loads(result.stdout)
    assert [*usages] == [*map(str, capabilities)]
    return [*usages.values()]


@pytest.fixture(
    scope="module",
    params=[90, *(pytest.param(other, marks=pytest.mark.long) for other in OTHERS)],
)
def card(request: pytest.FixtureRequest) -> tuple[int, Usage]:
    """A capability, and what each variant uses on GPUs of it."""
    (usage,) = compiled(request.param)
    assert usage.keys() == variants(request.param).keys()
    return request.param, usage


@pytest.fixture
def kernels(card: tuple[int, Usage]) -> Usage:
    return card[1]


def check_limits(capability: int, kernels: Usage) -> None:
    """They spill nothing, a program has the shared memory that it takes, and keys are copied beside
    the products.
    """
    spilled = {name: one["spilled"] for name, one in kernels.items()}
    assert {name for name, size in spilled.items() if size > SPILLED.get(name, 0)} == set(), (
        capability
    )
    shared = {name: one["shared"] for name, one in kernels.items()}
    most = SHARED_MEMORY[capability]
    assert {name for name, size in shared.items() if size > most} <= OPTIONAL, capability
    for name in kernels.keys() & set(AHEAD):
        assert kernels[name]["copies"], (capability, name)
        # A group is of keys or of values: those of the next turn are under way.
        ahead = 0 if (capability, name) in TWO_PROGRAMS else 2
        assert kernels[name]["in_flight"] == ahead, (capability, name)


def test_the_main_kernels_fit_into_other_gpus() -> None:
    """Compiled by one process: one for each takes 2 s longer."""
    for capability, kernels in zip(OTHERS, compiled(*OTHERS, names=MAIN), strict=True):
        assert set(kernels) == set(MAIN)
        check_limits(capability, kernels)


def test_all_kernels_fit_into_a_gpu(card: tuple[int, Usage]) -> None:
    check_limits(*card)


def test_so_many_decodes_fit_on_a_multiprocessor_as_are_counted_on(
    card: tuple[int, Usage],
) -> None:
    """By their registers, which are given to a warp by 256, and by shared memory, of which a
    program takes 1 KB more.
    """
    capability, kernels = card
    for head_dim, name in ((64, "narrow decode"), (128, "decode"), (256, "wide decode")):
        one = kernels[name]
        by_registers = 65_536 // (4 * -(-one["registers"] * 32 // 256) * 256)
        by_memory = (SHARED_MEMORY[capability] + 1024) // (one["shared"] + 1024)
        counted = ways_for(capability, head_dim, 2).programs
        assert counted <= min(by_registers, by_memory) <= counted + 1, name


@pytest.mark.parametrize("name", BESIDE)
def test_matrices_move_in_accesses_of_16_bytes(kernels: Usage, name: str) -> None:
    assert kernels[name]["wide_loads"]
    assert kernels[name]["wide_stores"]
    # With 64 registers each, a multiprocessor holds half as many threads as it can at most. A row
    # of 16,384 numbers has one to itself.
    assert kernels[name]["registers"] <= (128 if name == "norm of wide rows" else 64)


def test_a_multiprocessor_has_room_for_whoever_chooses_a_token(kernels: Usage) -> None:
    # Sixteen warps of 128 registers are all that there are; scores are computed by four.
    registers = {name: kernels[name]["registers"] for name in SAMPLING}
    assert all(one <= (128 if "choose" in name else 168) for name, one in registers.items())


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
    (kernels,) = compiled(90, names=OVERLAPPED, overlap=True)
    assert set(kernels) == set(OVERLAPPED)
    check_overlap(kernels)


@pytest.mark.long
@pytest.mark.parametrize("capability", OVERLAPPING)
def test_kernels_that_overlap_wait_for_the_one_before(capability: int) -> None:
    (kernels,) = compiled(capability, overlap=True)
    assert kernels.keys() == variants(capability).keys()
    check_overlap(kernels)
    check_limits(capability, kernels)
    for name in BESIDE:
        test_matrices_move_in_accesses_of_16_bytes(kernels, name)
    test_a_multiprocessor_has_room_for_whoever_chooses_a_token(kernels)
