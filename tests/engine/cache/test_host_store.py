"""Rows in host memory, whatever segments they lie in."""

from __future__ import annotations

import pytest
import torch

from engine.api.errors import ModelError
from engine.cache.host_store import HostStore


def make_store(num_rows: int, monkeypatch: pytest.MonkeyPatch, rows: int) -> HostStore:
    """A store whose segments hold so many rows of three numbers."""
    monkeypatch.setattr("engine.cache.host_store._SEGMENT_BYTES", 12 * rows + 1)
    return HostStore(num_rows, 3, torch.float32, pinned=False)


@pytest.mark.parametrize("rows", [1, 2, 3, 100])
@pytest.mark.parametrize(
    "places", [[0], [0, 1, 2, 3, 4, 5, 6], [6, 5, 0, 1, 3], [2, 3, 4, 0, 1], []]
)
def test_each_row_keeps_what_was_put_there(
    rows: int, places: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(7, monkeypatch, rows)
    everything = torch.arange(21.0).view(7, 3)
    store.fill(range(7), everything)
    new = torch.arange(100.0, 100 + 3 * len(places)).view(-1, 3)
    store.fill(places, new)

    got = torch.zeros(len(places), 3)
    store.read(places, got)
    assert torch.equal(got, new)
    others = [row for row in range(7) if row not in places]
    got = torch.zeros(len(others), 3)
    store.read(others, got)
    assert torch.equal(got, everything[others])


def test_neighbours_are_copied_as_one() -> None:
    store = HostStore(9, 2, torch.float32, pinned=False)
    assert [run[:2] for run in store._runs([4, 5, 6, 1, 8, 7])] == [(0, 3), (3, 4), (4, 5), (5, 6)]


def test_memory_that_cannot_be_had_is_told_with_the_option(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA error: out of memory")

    # Not by asking for too much: 120 TB of address space were had, and each trim of the heap took
    # seconds for all tests after it.
    monkeypatch.setattr(torch, "empty", refuse)
    with pytest.raises(ModelError, match=r"bytes of host memory for swapping \(swap_memory\)"):
        HostStore(4, 8, torch.float32, pinned=True)
