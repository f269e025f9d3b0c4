"""The memory of packed weights."""

from __future__ import annotations

import pytest
import torch

from engine.model.program import arena
from engine.model.program.arena import Arena
from tests.support.native import kernels_or_skip

native = kernels_or_skip()

PAGE = 2 << 20


def test_pieces_lie_one_right_after_the_other_from_the_beginning_of_a_huge_page() -> None:
    memory = Arena(native)
    first = memory.take(33, torch.bfloat16)
    second = memory.take(5, torch.float32)
    assert first.data_ptr() % PAGE == 0
    assert (len(first), first.dtype) == (33, torch.bfloat16)
    assert second.data_ptr() == first.data_ptr() + 128  # the next line after 66 bytes
    assert (len(second), second.dtype) == (5, torch.float32)


def test_where_one_does_not_fit_more_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "_CHUNK", 256)
    memory = Arena(native)
    pieces = [memory.take(count, torch.bfloat16) for count in (100, 100, 5000, 28)]
    for at, piece in enumerate(pieces):
        piece.fill_(at)
    assert [set(piece.tolist()) for piece in pieces] == [{0.0}, {1.0}, {2.0}, {3.0}]
    assert [piece.data_ptr() % PAGE for piece in pieces] == [0, 0, 0, 0]
