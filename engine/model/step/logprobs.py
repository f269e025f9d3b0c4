"""RawLogprobs: the model's own log-probabilities, for requests that ask for them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.api.logprobs import TokenLogprobs
from engine.model.step.sending import fetch, send

IntArray = npt.NDArray[np.int64]

_LEAST = torch.finfo(torch.float32).min
# Logits processed at once: on a processor as many as fit into its caches with their temporaries. 64
# rows of 20,000 took 22 ms in such groups, and 71 ms all at once. On a GPU there are enough that
# launches do not matter.
_GROUP, _GPU_GROUP = 1 << 18, 1 << 22
_BYTES = 32  # for each of them, as temporaries


class RawLogprobs:
    """Keeps some rows' logits from before the sampler changes them, until tokens are chosen.

    A row's numbers depend only on its own logits. Among tokens with equal logits, the smallest id
    comes first; topk would choose arbitrarily.

    Args:
        logits: [S, vocab_size] float32.
        asking: (row, how many of the likeliest tokens it asks for), at least one.
    """

    def __init__(self, logits: Tensor, asking: Sequence[tuple[int, int]]) -> None:
        self._asking = asking
        self._rows = send(np.array([row for row, _ in asking]), logits.device)
        self._logits = logits.index_select(0, self._rows)  # a copy

    def start(self, tokens: Tensor) -> Logprobs:
        """Compute the log-probabilities, without waiting for the device.

        Args:
            tokens: [S] integers on the logits' device, the tokens chosen in all rows.
        """
        chosen = tokens.index_select(0, self._rows).clamp(min=0).long()[:, None]
        number = max(number for _, number in self._asking)
        return Logprobs(self._asking, *map(fetch, columns_of(self._logits, chosen, number)))


class Logprobs:
    """Computed log-probabilities, on the host once the device has got that far.

    Args:
        asking: as in `RawLogprobs`, for A rows.
        chosen: [A], log-probability of each row's token.
        ranks: [A], its rank.
        likeliest: [A, n], each row's likeliest tokens.
        top: [A, n], their log-probabilities.
        allowed: [A], how many of them the model does not rule out; these come first.
    """

    def __init__(
        self,
        asking: Sequence[tuple[int, int]],
        chosen: Tensor,
        ranks: Tensor,
        likeliest: Tensor,
        top: Tensor,
        allowed: Tensor,
    ) -> None:
        self._asking = asking
        self._columns = chosen, ranks, likeliest, top, allowed

    def of(self, tokens: IntArray) -> tuple[TokenLogprobs | None, ...]:
        """One for each row of the step, None if it asks for none or has no token.

        Args:
            tokens: [S], the chosen tokens; -1 where a row has a NaN, +inf, or nothing finite. The
                device must have got that far.
        """
        found: list[TokenLogprobs | None] = [None] * len(tokens)
        columns = (column.tolist() for column in self._columns)
        for (row, number), logprob, rank, likeliest, top, allowed in zip(
            self._asking, *columns, strict=True
        ):
            if tokens[row] >= 0:
                count = min(number, allowed)
                pairs = zip(likeliest[:count], top[:count], strict=True)
                found[row] = TokenLogprobs(logprob, rank, tuple(pairs))
        return tuple(found)


def columns_of(logits: Tensor, chosen: Tensor, number: int) -> tuple[Tensor, ...]:
    """The columns of `Logprobs`, on the logits' device, computed group by group.

    Args:
        logits: [A, vocab_size] float32, with at least one row.
        chosen: [A, 1] int64, each row's token.
        number: how many of the likeliest tokens to return.
    """
    size = max(1, _group(logits.device) // logits.shape[1])
    parts = [
        _computed(logits[first : first + size], chosen[first : first + size], number)
        for first in range(0, len(chosen), size)
    ]
    return tuple([torch.cat(part) for part in zip(*parts, strict=True)])


def work_bytes(rows: int, vocab_size: int, device: torch.device) -> int:
    """Most bytes of temporaries of `columns_of` for this many rows."""
    return min(rows * vocab_size, max(_group(device), vocab_size)) * _BYTES


def _group(device: torch.device) -> int:
    return _GROUP if device.type == "cpu" else _GPU_GROUP


def _computed(logits: Tensor, chosen: Tensor, number: int) -> tuple[Tensor, ...]:
    """The columns of `Logprobs` for some rows, given their tokens, [rows, 1]."""
    scores = logits.gather(1, chosen)
    ranks = 1 + (logits > scores).sum(-1)
    # Logits are relative to the largest one. Otherwise float32 would lose the difference of a
    # likely token's log-probability from 0.
    best = logits.amax(-1, keepdim=True)
    log_sums = (logits - best).logsumexp(-1, keepdim=True)
    likeliest = _likeliest(logits, number)
    top = logits.gather(1, likeliest)
    allowed = (top >= _LEAST).sum(-1)
    return (scores - best - log_sums).squeeze(1), ranks, likeliest, top - best - log_sums, allowed


def _likeliest(logits: Tensor, number: int) -> Tensor:
    """The ids of each row's likeliest tokens, equals by id: [rows, at most number] int64."""
    vocab_size = logits.shape[1]
    if not number:
        return torch.empty(len(logits), 0, dtype=torch.int64, device=logits.device)
    # The bits of floats are in their order once those of negative ones are inverted. The id in the
    # lower bits makes all keys differ, so that topk has no choice. Adding 0 turns -0 into 0.
    bits = (logits + 0.0).view(torch.int32)
    order = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    ids = torch.arange(vocab_size - 1, -1, -1, device=logits.device)
    top = ((order << 32) + ids).topk(min(number, vocab_size)).values
    return vocab_size - 1 - (top & 0xFFFFFFFF)
