"""TorchAttention: attention in plain PyTorch, the reference on any device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from engine.batch.shape import ModelShape
from engine.cache.storage import CacheShape, TokenStorage, UnitStorage
from engine.model.attention.base import IntArray, StepContext
from engine.model.attention.params import AttentionParams
from engine.model.machine.memory import LargestStep

# Queries of one call in a prefill. Keys past a tile's last query are not read, which saves half the
# work. Smaller tiles lose more to overhead: 512 tokens at position 1,536, in bfloat16, take 22 ms
# in tiles of 64 and 15 ms in tiles of 256.
_TILE = 256
# A call costs 25 us on a CPU, as much as gathering and scoring 250 tokens of context.
_FREE_PADDING_TOKENS = 256
_MAX_PADDING = 0.1
# Most tokens that one call gathers, which bounds temporary memory. On a CPU larger groups cost 40 %
# more, because their memory returns to the system after each call and is mapped again page by page.
_MAX_GROUP_TOKENS = 1 << 16
_MAX_CPU_GROUP_TOKENS = 1 << 13
# Most float32 scores of one call of a prefill.
_MAX_SCORES = 1 << 24
# Tokens by which the masks of prefills grow with their contexts.
_BAND_GROWTH = 2048
# For the memory plan: number of copies of one call's gathered tokens, and of its scores in float32,
# and bytes of masks for each position.
_GATHERED_COPIES, _SCORE_COPIES = 3, 4
_MASK_BYTES = _TILE * 2 * 14


@dataclass(frozen=True, slots=True)
class _Decodes:
    """Rows [first, last) of one token each, for each of which `width` blocks are gathered.

    Attributes:
        blocks: [(last - first) * width] int64, block numbers.
        mask: [last - first, 1, 1, width * block_size], added to the scores.
    """

    first: int
    last: int
    blocks: Tensor
    mask: Tensor


@dataclass(frozen=True, slots=True)
class _Prefill:
    """One row of several tokens.

    Attributes:
        offset: index of its first token in the packed step.
        start, count: its tokens are at positions [start, start + count).
        reach: position of the first token of `blocks`.
        blocks: [B] int64, block numbers.
    """

    offset: int
    start: int
    count: int
    reach: int
    blocks: Tensor


@dataclass(frozen=True, slots=True)
class _Layout:
    decodes: tuple[_Decodes, ...]
    prefills: tuple[_Prefill, ...]


class TorchAttention:
    """Gathers each sequence's blocks and calls `scaled_dot_product_attention`.

    Decode rows of similar length share a call, padded to the longest; a prefill row needs a call
    for each tile of queries. Softcap and sinks, which that function lacks, use a softmax of our own
    in float32.
    """

    def __init__(self) -> None:
        # torch 2.11 prefers cuDNN for masked calls on some GPUs, which builds a plan for every new
        # shape: 0.44 s on a B200 (modelscope/FunASR issue 3704). Our shapes change at every step.
        torch.backends.cuda.enable_cudnn_sdp(False)
        self._bands: dict[int | None, Tensor] = {}

    @property
    def name(self) -> str:
        """See `AttentionBackend.name`."""
        return "torch"

    @staticmethod
    def step_bytes(shape: ModelShape, largest: LargestStep, device: torch.device) -> int:
        """Most bytes for the attention of a step, which its layers use in turn."""
        together = min(_group_limit(device), largest.seqs * largest.longest)
        token = max((one.stored for one in shape.layers), default=0) * shape.dtype_bytes
        gathered = max(largest.longest, together) * token
        scores = _SCORE_COPIES * 4 * _MAX_SCORES
        return _GATHERED_COPIES * gathered + scores + _MASK_BYTES * largest.longest

    def storage(self, shape: CacheShape) -> TokenStorage:
        """See `AttentionBackend.storage`."""
        return TokenStorage(shape)

    def attend(
        self, query: Tensor, layer: int, context: StepContext, params: AttentionParams
    ) -> Tensor:
        """See `AttentionBackend.attend`."""
        layout = context.layouts.get(params.window)
        if layout is None:
            layout = context.layouts[params.window] = _lay_out(context, params.window)
        storage = context.storage
        assert isinstance(storage, TokenStorage | UnitStorage)
        tokens, heads, head_dim = query.shape
        kv_heads, value_dim = storage.shape.num_kv_heads, storage.shape.value_dim
        grouped = query.reshape(tokens, kv_heads, heads // kv_heads, head_dim)
        width = head_dim if storage.shape.value_in_key else value_dim
        output = query.new_empty(*grouped.shape[:3], width)
        for run in layout.decodes:
            key, value = _gather(storage, layer, run.blocks)
            output[run.first : run.last] = _decode(
                run, grouped[run.first : run.last], key, value, params
            )
        for row in layout.prefills:
            key, value = _gather(storage, layer, row.blocks)
            packed = slice(row.offset, row.offset + row.count)
            self._prefill(row, grouped[packed], key, value, params, output[packed])
        return output.flatten(1, 2)[..., :value_dim]

    def _prefill(
        self,
        row: _Prefill,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        params: AttentionParams,
        output: Tensor,
    ) -> None:
        """Attention of one row, tile by tile.

        Args:
            query: [count, kv_heads, groups, head_dim].
            key, value: gathered, [B, block_size, kv_heads, head_dim or value_dim].
            output: [count, kv_heads, groups, value_dim], written to.
        """
        key, value = (x.flatten(0, 1).transpose(0, 1) for x in (key, value))
        kv_heads, groups = query.shape[1:3]
        sinks = _sinks_of(params, kv_heads)
        tile = _TILE
        if params.softcap is not None or sinks is not None:
            tile = max(1, min(_TILE, _MAX_SCORES // (kv_heads * groups * key.shape[1])))
        for first in range(0, row.count, tile):
            last = min(first + tile, row.count)
            # Keys [begin, end), counted from the first gathered one.
            end = row.start + last - row.reach
            begin = 0
            if params.window is not None:
                begin = max(0, row.start + first - params.window + 1 - row.reach)
            before = row.start + first - row.reach - begin
            # [groups, kv_heads, queries, head_dim]: the key heads are shared by expansion.
            attended = _attention(
                query[first:last].permute(2, 1, 0, 3),
                key[:, begin:end].expand(groups, -1, -1, -1),
                value[:, begin:end].expand(groups, -1, -1, -1),
                self._band(params.window, before, last - first, query),
                params,
                None if sinks is None else sinks.T[:, :, None, None],
            )
            output[first:last] = attended.permute(2, 1, 0, 3)

    def _band(self, window: int | None, before: int, queries: int, like: Tensor) -> Tensor:
        """The mask of a tile: [queries, before + queries].

        A query's mask depends only on distances, so that every tile's mask is a part of one band,
        which is kept from step to step.

        Args:
            before: number of keys before that of the tile's first query.
        """
        band = self._bands.get(window)
        if band is None or band.shape[1] < before + _TILE:
            reach = (before // _BAND_GROWTH + 1) * _BAND_GROWTH
            key = torch.arange(-reach, _TILE, device=like.device)
            distance = key - torch.arange(_TILE, device=like.device)[:, None]
            hidden = distance > 0 if window is None else (distance > 0) | (distance <= -window)
            band = torch.zeros(hidden.shape, dtype=like.dtype, device=like.device)
            self._bands[window] = band.masked_fill_(hidden, float("-inf"))
        reach = band.shape[1] - _TILE
        mask = band[:queries, reach - before : reach + queries]
        # CUDA's memory-efficient kernel needs an aligned mask, and only checks its strides.
        return mask if mask.device.type == "cpu" else mask.contiguous()


def _gather(
    storage: TokenStorage | UnitStorage, layer: int, blocks: Tensor
) -> tuple[Tensor, Tensor]:
    """Gather keys and values of whole blocks. If values are in their keys, whole keys are weighted:
    `scaled_dot_product_attention` stores all scores if the two have different lengths.
    """
    key, value = storage.gather(layer, blocks)
    return key, key if storage.shape.value_in_key else value


def _decode(
    run: _Decodes, query: Tensor, key: Tensor, value: Tensor, params: AttentionParams
) -> Tensor:
    """Attention of the rows of a run, in one call.

    Args:
        query: [rows, kv_heads, groups, head_dim]: the query heads that share a key head take the
            place of a prefill's queries.
        key, value: gathered, [rows * width, block_size, kv_heads, head_dim or value_dim].

    Returns:
        [rows, kv_heads, groups, value_dim].
    """
    rows, kv_heads = query.shape[:2]
    sinks = _sinks_of(params, kv_heads)
    return _attention(
        query,
        key.view(rows, -1, *key.shape[2:]).transpose(1, 2),
        value.view(rows, -1, *value.shape[2:]).transpose(1, 2),
        run.mask,
        params,
        None if sinks is None else sinks[:, :, None],
    )


def _sinks_of(params: AttentionParams, kv_heads: int) -> Tensor | None:
    """The sinks as [kv_heads, groups] in float32."""
    return None if params.sinks is None else params.sinks.float().view(kv_heads, -1)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    params: AttentionParams,
    sinks: Tensor | None,
) -> Tensor:
    """`scaled_dot_product_attention`, or the same in float32 if there are softcap or sinks.

    Args:
        sinks: those of `params`, in a shape that broadcasts to [..., queries, 1].
    """
    softcap = params.softcap
    if softcap is None and sinks is None:
        return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=params.scaling)
    scores = query.float() @ key.float().transpose(-1, -2) * params.scaling
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores += mask
    if sinks is not None:
        scores = torch.cat((scores, sinks.expand(*scores.shape[:-1], 1)), dim=-1)
    weights = scores.softmax(-1)[..., : key.shape[-2]]
    return (weights @ value.float()).to(query.dtype)


def _lay_out(context: StepContext, window: int | None) -> _Layout:
    """Choose the blocks that each call gathers, for layers with this window."""
    size = context.storage.shape.block_size
    device = context.storage.shape.device
    lengths = context.starts + context.counts
    begins = np.zeros_like(lengths)
    if window is not None:
        begins = np.maximum(context.starts - window + 1, 0)
    first_blocks = begins // size
    last_blocks = -(-lengths // size)
    offsets = np.cumsum(context.counts) - context.counts
    num_decodes = int(np.argmax(context.counts > 1)) if (context.counts > 1).any() else len(lengths)

    decodes = []
    widths = last_blocks[:num_decodes] - first_blocks[:num_decodes]
    for first, last in _runs(widths, size, _group_limit(device)):
        low, high = first_blocks[first:last, None], last_blocks[first:last, None]
        width = int((high - low).max())
        # Padding repeats a row's own last block, because another sequence's block could contain
        # NaN, which no mask stops.
        columns = np.minimum(low + np.arange(width), high - 1)
        blocks = np.take_along_axis(context.block_tables[first:last], columns, axis=1)
        positions = (low * size) + np.arange(width * size)
        hidden = (positions >= lengths[first:last, None]) | (positions < begins[first:last, None])
        mask = torch.zeros(hidden.shape, dtype=context.storage.shape.dtype, device=device)
        mask.masked_fill_(torch.from_numpy(hidden).to(device), float("-inf"))
        index = torch.from_numpy(blocks.ravel()).to(device)
        decodes.append(_Decodes(first, last, index, mask[:, None, None]))

    prefills = []
    for row in range(num_decodes, len(lengths)):
        blocks = context.block_tables[row, first_blocks[row] : last_blocks[row]]
        prefills.append(
            _Prefill(
                offset=int(offsets[row]),
                start=int(context.starts[row]),
                count=int(context.counts[row]),
                reach=int(first_blocks[row]) * size,
                blocks=torch.from_numpy(blocks).to(device),
            )
        )
    return _Layout(tuple(decodes), tuple(prefills))


def _group_limit(device: torch.device) -> int:
    return _MAX_CPU_GROUP_TOKENS if device.type == "cpu" else _MAX_GROUP_TOKENS


def _runs(widths: IntArray, block_size: int, max_tokens: int) -> list[tuple[int, int]]:
    """Runs [first, last) of decode rows to gather together, longest rows first.

    Args:
        widths: [rows], blocks that each row needs; rising, except for the alignment of windows.
        max_tokens: most tokens that a run of several rows may gather.
    """
    runs: list[tuple[int, int]] = []
    last = len(widths)
    padding = 0
    for row in range(last - 1, -1, -1):
        gathered = int(widths[last - 1]) * (last - row) * block_size
        padding += int(widths[last - 1] - widths[row]) * block_size
        wasteful = padding > max(_FREE_PADDING_TOKENS, _MAX_PADDING * gathered)
        if row + 1 < last and (wasteful or gathered > max_tokens):
            runs.append((row + 1, last))
            last, padding = row + 1, 0
    if last:
        runs.append((0, last))
    return runs
