"""The memory of packed weights."""

from __future__ import annotations

import pytest
import torch

from engine.model.program import arena
from engine.model.program.arena import Arena
from tests.support.native import kernels_or_skip

native = kernels_or_skip()

PAGE = 2 << 20


def filled(memory: Arena, count: int, dtype: torch.dtype, number: float = 0.0) -> torch.Tensor:
    packed = memory.pack(count, dtype, lambda piece: piece.fill_(number))
    assert packed is not None
    return packed


def test_pieces_lie_one_right_after_the_other_from_the_beginning_of_a_huge_page() -> None:
    memory = Arena(native)
    first = filled(memory, 33, torch.bfloat16)
    second = filled(memory, 5, torch.float32)
    assert first.data_ptr() % PAGE == 0
    assert (len(first), first.dtype) == (33, torch.bfloat16)
    assert second.data_ptr() == first.data_ptr() + 128  # the next line after 66 bytes
    assert (len(second), second.dtype) == (5, torch.float32)
    assert [len(one) for one in memory.pieces if one is not None] == [66, 20]


def test_where_one_does_not_fit_more_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "_CHUNK", 256)
    memory = Arena(native)
    counts = 100, 100, 5000, 28
    pieces = [filled(memory, count, torch.bfloat16, at) for at, count in enumerate(counts)]
    assert [set(piece.tolist()) for piece in pieces] == [{0.0}, {1.0}, {2.0}, {3.0}]
    assert [piece.data_ptr() % PAGE for piece in pieces] == [0, 0, 0, 0]


def test_pieces_that_were_packed_before_are_not_packed_again() -> None:
    first = Arena(native)
    expected = filled(first, 33, torch.bfloat16, 3.0)
    assert first.pack(7, torch.uint8, lambda piece: False) is None
    second = Arena(native, first.pieces)
    found = second.pack(33, torch.bfloat16, lambda piece: pytest.fail("packed again"))
    assert found is not None
    assert torch.equal(found, expected)
    assert second.pack(7, torch.uint8, lambda piece: pytest.fail("packed again")) is None
    assert (first.is_packed, second.is_packed) == (False, True)


@pytest.mark.parametrize(
    ("count", "words"), [(34, "has 66 bytes in the cache, and 68 here"), (33, "only 1 packed")]
)
def test_other_pieces_than_before_are_refused(count: int, words: str) -> None:
    first = Arena(native)
    filled(first, 33, torch.bfloat16)
    second = Arena(native, first.pieces)
    with pytest.raises(ValueError, match=words):
        [filled(second, count, torch.bfloat16) for _ in range(2)]
