"""StepInputs: the inputs of a step's launches, laid out in one run of 32-bit words.

So a step's inputs reach the device in one copy, and the launches of a CUDA graph find them where
they were when it was captured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from engine.model.attention.batch import PackedRows
from engine.triton.work import ITEM, MERGE, lay_out, most_entries

Int32Array = npt.NDArray[np.int32]

# An array on the host, or a tensor on the device.
Words = TypeVar("Words")

# The fields of an update of the block tables: row, place and block.
UPDATE = ("row", "place", "block")
# Sections are aligned to 16 bytes, so that kernels are compiled for one alignment only.
_ALIGNMENT = 4


@dataclass(frozen=True, slots=True)
class StepSize:
    """The size of a step, for which its inputs are laid out.

    Attributes:
        tokens: T.
        samples: S, rows that sample.
        chunks: whether a row may have more tokens than a small tile.
    """

    tokens: int
    samples: int
    chunks: bool


@dataclass(frozen=True, slots=True)
class AttentionKind:
    """Layers that share a work list.

    Attributes:
        tiles: most tokens of a small and of a large tile.
        window: as in `engine.model.attention.params.AttentionParams`.
    """

    tiles: tuple[int, int]
    window: int | None


@dataclass(frozen=True, slots=True)
class StepInputs(Generic[Words]):
    """A step's inputs, as arrays on the host or as tensors on the device, all int32.

    Attributes:
        ids: [T], as in `engine.model.attention.batch.PackedRows`.
        rows: [T], the row of the block tables that each token's sequence has; -1 is padding.
        positions: [T].
        last_tokens: [S], index of each sampling row's last token; -1 is padding.
        sampling: [S, fields], the sampler's words of each row; rows of -1 are padding.
        updates: [N, len(UPDATE)], blocks that are appended to the tables; -1 is padding.
        items, merges: by kind, of small and of large tiles, as in `engine.triton.work.WorkList`,
            with the rows of the block tables in the place of those of the step; -1 is padding.
    """

    ids: Words
    rows: Words
    positions: Words
    last_tokens: Words
    sampling: Words
    updates: Words
    items: dict[AttentionKind, tuple[Words, ...]]
    merges: dict[AttentionKind, tuple[Words, ...]]


class InputLayout:
    """The layout of the inputs of a step of some size.

    Args:
        kinds: the model's kinds of attention.
        rows: most rows of a step.
        programs: items that fill the device, as `engine.triton.work.cut` takes it.
        fields: words that the sampler reads of a row.
        block_size: token slots in a block.

    Attributes:
        num_words: the number of words in all.
        num_updates: the most updates of the block tables.
    """

    def __init__(
        self,
        size: StepSize,
        kinds: Iterable[AttentionKind],
        *,
        rows: int,
        programs: int,
        fields: int,
        block_size: int,
    ) -> None:
        self._programs = programs
        # Each row may begin a new block, and each block that a step fills begins once.
        self.num_updates = min(size.tokens, size.samples + size.tokens // block_size + 1)
        self._entries = {
            kind: most_entries(
                size.tokens,
                rows=rows,
                tiles=kind.tiles,
                programs=programs,
                chunks=size.chunks,
            )
            for kind in kinds
        }
        self._shapes: list[tuple[int, ...]] = [
            (size.tokens,),
            (size.tokens,),
            (size.tokens,),
            (size.samples,),
            (size.samples, fields),
            (self.num_updates, len(UPDATE)),
        ]
        for lists in self._entries.values():
            self._shapes += [(items, len(ITEM)) for items, _ in lists]
            self._shapes += [(merges, len(MERGE)) for _, merges in lists]
        self._starts = [0]
        for shape in self._shapes:
            room = -(-math.prod(shape) // _ALIGNMENT) * _ALIGNMENT
            self._starts.append(self._starts[-1] + room)
        self.num_words = self._starts[-1]

    def over(self, words: Any) -> StepInputs[Any]:
        """The inputs in a run of words, an array or a tensor: [at least num_words] int32."""
        sections = [
            words[start : start + math.prod(shape)].reshape(shape)
            for start, shape in zip(self._starts, self._shapes, strict=False)
        ]
        ids, rows, positions, last_tokens, sampling, updates = sections[:6]
        lists = iter(sections[6:])
        items: dict[AttentionKind, tuple[Any, ...]] = {}
        merges: dict[AttentionKind, tuple[Any, ...]] = {}
        for kind, both in self._entries.items():
            items[kind] = tuple(next(lists) for _ in both)
            merges[kind] = tuple(next(lists) for _ in both)
        return StepInputs(ids, rows, positions, last_tokens, sampling, updates, items, merges)

    def fill(
        self,
        words: Int32Array,
        step: PackedRows,
        rows: npt.NDArray[np.int64],
        sampling: Int32Array,
        updates: Int32Array,
    ) -> None:
        """Write a step's inputs, which may be smaller than the layout, and fill it up with padding.

        Args:
            words: [at least num_words].
            rows: [R], the row of the block tables that each row's sequence has.
            sampling: [at most S, fields].
            updates: [at most N, len(UPDATE)].
        """
        inputs = self.over(words)
        _put(inputs.ids, step.input_ids, 0)
        _put(inputs.rows, np.repeat(rows, step.counts), -1)
        _put(inputs.positions, step.position_ids, 0)
        _put(inputs.last_tokens, step.last_tokens, -1)
        _put(inputs.sampling, sampling, -1)
        _put(inputs.updates, updates, -1)
        for kind in self._entries:
            works = lay_out(
                step.starts,
                step.counts,
                tiles=kind.tiles,
                window=kind.window,
                programs=self._programs,
            )
            for work, items, merges in zip(
                works, inputs.items[kind], inputs.merges[kind], strict=True
            ):
                work.items[:, 0] = rows[work.items[:, 0]]
                _put(items, work.items, -1)
                _put(merges, work.merges, -1)


def _put(section: Int32Array, values: npt.NDArray[Any], padding: int) -> None:
    section[: len(values)] = values
    section[len(values) :] = padding
