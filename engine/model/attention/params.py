"""AttentionParams: what a layer asks of attention beside its tensors of this step."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttentionParams:
    """How a layer's scores become weights.

    Attributes:
        scaling: the factor of the scores.
        window: how many positions each token sees, itself included (Mistral 7B, arXiv 2310.06825,
            section 2); None is all.
        softcap: scores become softcap * tanh(score / softcap) (Gemma 2, arXiv 2408.00118, section
            2); None leaves them as they are.
        sinks: [H] logits that take part in the softmax and carry no value (gpt-oss); None is none.
    """

    scaling: float
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
