"""AttentionParams: a layer's parameters of attention, beside the step's tensors."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttentionParams:
    """How a layer's scores become weights.

    Attributes:
        scaling: the factor of the scores.
        window: number of positions that each token attends to, including itself (Mistral 7B, arXiv
            2310.06825, section 2); None for all.
        softcap: scores become softcap * tanh(score / softcap) (Gemma 2, arXiv 2408.00118, section
            2); None for no cap.
        sinks: [H] logits that take part in the softmax without a value (gpt-oss); None for no
            sinks.
    """

    scaling: float
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
