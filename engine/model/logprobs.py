"""RawLogprobs: the model's own log-probabilities, for rows whose requests ask for them."""

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
    """Keeps some rows' logits as they are before the sampler changes them, until tokens are chosen.

    A row's numbers depend on its own logits alone. Of tokens with equal logits, the one with the
    smallest id comes first among the likeliest; topk would take any of them.

    Args:
        logits: [S, vocab_size] float32.
        asking: (row, how many of the likeliest tokens it asks for).
    """

    def __init__(self, logits: Tensor, asking: Sequence[tuple[int, int]]) -> None:
        self._rows, self._sizes = np.array(asking, np.int64).T
        self._logits = logits[torch.from_numpy(self._rows.copy()).to(logits.device)]  # a copy

    def of(self, tokens: IntArray) -> list[TokenLogprobs]:
        """The log-probabilities of each row that asks.

        Those of a row whose token is -1 mean nothing: it has a NaN, +inf, or nothing finite.

        Args:
            tokens: [S], the tokens that were chosen in all rows of the step.
        """
        token = torch.from_numpy(tokens[self._rows].clip(min=0)).to(self._logits.device)
        chosen = self._logits.gather(1, token[:, None])
        ranks = 1 + (self._logits > chosen).sum(-1)
        # Logits are taken relative to the largest one. Otherwise float32 would lose what a likely
        # token's log-probability lacks to 0.
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
        # The floor is no less than the least finite number, so that tokens which the model rules
        # out are not among the likeliest.
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
