"""RawLogprobs: the model's own log-probabilities in rows whose requests ask for them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.api.logprobs import TokenLogprobs

IntArray = npt.NDArray[np.int64]

_LEAST = torch.finfo(torch.float32).min


class RawLogprobs:
    """Holds some rows' logits from before the sampler changes them, until tokens are chosen.

    A row's numbers depend on its own logits alone: the likeliest tokens are all at or above the
    n-th logit, equals by id, where topk takes any of those equal to its last.

    Args:
        logits: [S, vocab_size] float32.
        asking: rows, and how many of the likeliest tokens each asks for.
    """

    def __init__(self, logits: Tensor, asking: Sequence[tuple[int, int]]) -> None:
        self._rows, self._sizes = np.array(asking, np.int64).T
        self._logits = logits[torch.from_numpy(self._rows.copy()).to(logits.device)]  # a copy

    def of(self, tokens: IntArray) -> list[TokenLogprobs]:
        """For the tokens, [S], that were chosen in all rows: one for each row that asks.

        Without meaning where that is -1: the row has a NaN, +inf, or nothing finite.
        """
        token = torch.from_numpy(tokens[self._rows].clip(min=0)).to(self._logits.device)
        chosen = self._logits.gather(1, token[:, None])
        ranks = 1 + (self._logits > chosen).sum(-1)
        # Relative to the largest, or what a likely token lacks to 0 is lost in float32.
        best = self._logits.amax(-1)
        log_sums = (self._logits - best[:, None]).logsumexp(-1)
        logprobs = chosen.squeeze(1) - best - log_sums
        return [
            TokenLogprobs(logprob, rank, top)
            for logprob, rank, top in zip(
                logprobs.tolist(), ranks.tolist(), self._top(best, log_sums), strict=True
            )
        ]

    def _top(self, best: Tensor, log_sums: Tensor) -> list[tuple[tuple[int, float], ...]]:
        """Each row's likeliest tokens, given its largest logit, [R], and the logarithm of its
        total weight relative to that, [R].
        """
        vocab_size = self._logits.shape[1]
        sizes = self._sizes.clip(max=vocab_size)
        widest = int(sizes.max())
        if widest == 0:
            return [()] * len(sizes)
        last = torch.from_numpy(np.maximum(sizes, 1) - 1).to(best.device)
        # At the least number: tokens that the model rules out are not among the likeliest.
        floor = self._logits.topk(widest).values.gather(1, last[:, None]).clamp_(min=_LEAST)
        row, token = (self._logits >= floor).nonzero(as_tuple=True)
        logits = self._logits[row, token]
        logprobs = (logits - best[row] - log_sums[row]).cpu().numpy()
        rows, tokens = row.cpu().numpy(), token.cpu().numpy()
        order = np.lexsort((tokens, -logits.cpu().numpy(), rows))
        starts = np.searchsorted(rows, np.arange(len(sizes)))
        ends = np.minimum(starts + sizes, np.append(starts[1:], len(rows)))
        pairs = list(zip(tokens[order].tolist(), logprobs[order].tolist(), strict=True))
        return [tuple(pairs[a:b]) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
