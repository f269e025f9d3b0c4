"""Routing: computes each row's experts, and their weights, from the logits of a router."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

from engine.model.program.agree import agree, differences

# Scores that differ by less count as equal: a model's own rounding decides which of them is
# greater. By the type of the logits, in which some models also compute the scores (LFM2, Mistral
# 4).
_TIE = {torch.float32: 1e-6, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
# How often the logits of a choice among equals are raised, each time to the next greater number.
_RAISES = 16
# A factor this close to 1 counts as 1. Rounding of weights in bfloat16 moves it by 2e-4.
_NO_FACTOR = 2e-3


@dataclass(frozen=True, slots=True)
class Routing:
    """How logits choose experts; the same as `RouteArgs` of the native kernels.

    Attributes:
        chosen: number of experts of each row.
        score: `softmax` or `sigmoid` of all logits.
        correction: [experts] float32, contiguous, added to the scores for choosing experts, but not
            for weighting them (DeepSeek-V3, arXiv 2412.19437, 2.1.2); None if there is none.
        groups, kept, best: only experts of the `kept` best of `groups` groups can be chosen; a
            group's score is the sum of its `best` greatest scores. 1, 1 and 1 for no groups.
        normalised: whether weights are divided by the sum of the chosen scores.
        scale: factor of all weights.
        factors: [experts] float32, contiguous, further factors of each expert's weight; None if
            there are none.
    """

    chosen: int
    score: str
    correction: Tensor | None = None
    groups: int = 1
    kept: int = 1
    best: int = 1
    normalised: bool = True
    scale: float = 1.0
    factors: Tensor | None = None

    def choices(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Scores, and the numbers by which experts are chosen: [rows, experts] float64 both."""
        logits = logits.double()
        scores = logits.softmax(-1) if self.score == "softmax" else logits.sigmoid()
        by_score = self.correction is not None or self.best > 1
        choices = scores if by_score else logits
        if self.correction is not None:
            choices = choices + self.correction.double()
        if self.groups > 1:
            grouped = choices.reshape(len(choices), self.groups, choices.shape[1] // self.groups)
            best = grouped.topk(self.best).values.sum(-1)
            kept = torch.zeros_like(best).scatter(-1, best.topk(self.kept).indices, 1.0) > 0
            choices = grouped.masked_fill(~kept[..., None], float("-inf")).reshape(choices.shape)
        return scores, choices

    def choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Experts and their weights, [rows, chosen] int64 and float64; of equals the first."""
        scores, choices = self.choices(logits)
        order = torch.sort(choices, dim=-1, descending=True, stable=True).indices
        index = order[:, : self.chosen]
        weight = scores.gather(-1, index)
        if self.normalised:
            weight = weight / weight.sum(-1, keepdim=True)
        if self.factors is not None:
            weight = weight * self.factors.double()[index]
        return index, self.scale * weight


@dataclass(frozen=True, slots=True)
class Routed:
    """A router's results for some rows.

    Attributes:
        logits: [rows, experts].
        index, weight: [rows, chosen].
    """

    logits: Tensor
    index: Tensor
    weight: Tensor


def guess_routing(
    routed: Routed, numbers: Sequence[Tensor], hint: Routing | None
) -> Routing | None:
    """The routing that makes the same choices and weights; None if kernels do not have it.

    Args:
        numbers: [experts] each, which may be added to scores, or multiply weights.
        hint: the routing to try first, such as the previous layer's.
    """
    experts, chosen = routed.logits.shape[-1], routed.index.shape[-1]
    groupings = _groupings(experts, chosen)
    of_experts = (None, *(one.float().contiguous() for one in numbers))
    if hint is not None:
        groupings = ((hint.groups, hint.kept, hint.best), *groupings)
    for groups, kept, best in groupings:
        found: Routing | None = None
        least = (len(routed.index), math.inf)
        for correction in of_experts:
            for score in ("softmax", "sigmoid"):
                plain = Routing(chosen, score, correction, groups, kept, best)
                ours, _ = plain.choose(routed.logits)
                if not _same_choice(plain, routed, ours).all():
                    continue
                # If all logits were equal, every choice would be as good as the recorded one.
                others = int((~_chosen_alike(ours, routed)).sum())
                if others > len(ours) // 2:
                    continue
                for factors, normalised in product(of_experts, (True, False)):
                    routing = replace(plain, normalised=normalised, factors=factors)
                    scale, difference = _weighed(routing, routed, ours)
                    # The best one counts, because softmax and sigmoid of small logits nearly agree.
                    if difference < math.inf and (others, difference) < least:
                        found, least = replace(routing, scale=scale), (others, difference)
        if found is not None:
            return found
    return None


def settled(routing: Routing, routed: Routed) -> Tensor:
    """The logits, with a greater number for each expert that was chosen over an earlier equal one,
    so that `routing` makes the same choice.
    """
    logits, chosen = routed.logits, _is_chosen(routed.index, routed.logits)
    for _ in range(_RAISES):
        ours, _ = routing.choose(logits)
        differs = ~_chosen_alike(ours, routed)
        raised = torch.nextafter(logits, torch.full_like(logits, float("inf")))
        logits = torch.where(chosen & differs[:, None], raised, logits)
    return logits


def _groupings(experts: int, chosen: int) -> tuple[tuple[int, int, int], ...]:
    """(groups, how many are kept, how many experts determine a group's score)."""
    return (
        (1, 1, 1),
        *(
            (groups, kept, best)
            for groups in range(2, experts // 2 + 1)
            if experts % groups == 0
            for kept in range(1, groups)
            for best in (2, 1)
            if kept * (experts // groups) >= chosen
        ),
    )


def _is_chosen(index: Tensor, logits: Tensor) -> Tensor:
    """[rows, experts] bool."""
    return torch.zeros_like(logits, dtype=torch.bool).scatter(-1, index, True)


def _chosen_alike(ours: Tensor, routed: Routed) -> Tensor:
    """For each row, whether `ours` are the recorded experts."""
    logits = routed.logits
    return _is_chosen(ours, logits).eq(_is_chosen(routed.index, logits)).all(-1)


def _same_choice(routing: Routing, routed: Routed, ours: Tensor) -> Tensor:
    """For each row, whether `ours` are the recorded experts, or equally good ones."""
    _, choices = routing.choices(routed.logits)
    got, recorded = (choices.gather(-1, one).sort(-1).values for one in (ours, routed.index))
    most = _TIE.get(routed.logits.dtype, _TIE[torch.float32])
    tied: Tensor = ((got - recorded).abs() <= most * got.abs().clamp(min=1)).all(-1)
    return _chosen_alike(ours, routed) | tied


def _weighed(routing: Routing, routed: Routed, ours: Tensor) -> tuple[float, float]:
    """The factor of the weights, and their difference from the recorded ones with it; infinite if
    rounding does not explain it.
    """
    dense = torch.zeros_like(routed.logits, dtype=torch.float64)
    _, weight = routing.choose(routed.logits)
    got = dense.scatter(-1, ours, weight)
    recorded = dense.scatter(-1, routed.index, routed.weight.double())
    scale = float(recorded.sum() / got.sum())
    if abs(scale - 1) < _NO_FACTOR:
        scale = 1.0
    same = _chosen_alike(ours, routed)
    expected = recorded[same].to(routed.weight.dtype)
    if not len(expected) or not agree(scale * got[same], expected):
        return scale, math.inf
    return scale, float(differences(scale * got[same], expected).norm())
