"""Reference: what the model says in float32, for peers to be compared with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.peers.width import Width
from benchmarks.peers.workload import Workload
from engine.batch.shape import ModelShape
from engine.model.checks.gate import find_class
from engine.model.tracing.trace import trace


@dataclass(frozen=True, slots=True)
class Agreement:
    """How a peer's greedy tokens compare with the reference's.

    Attributes:
        first: whether the first token is the same, or as good within what may be off.
        is_exact: whether the first token is the same.
        equal: how many tokens from the first one on are the same.
        within: what may be off, in words.
    """

    first: bool
    is_exact: bool
    equal: int
    total: int
    within: str = "in bfloat16"

    def __str__(self) -> str:
        if not self.first:
            return "ITS FIRST TOKEN IS ANOTHER: this is not the same model"
        same = "the same first token" if self.is_exact else f"a first token as likely {self.within}"
        return f"{same} as float32, {self.equal} of {self.total} in a row"


class Reference:
    """Greedy tokens of one prompt by transformers in float32.

    Args:
        checkpoint: the model's folder.
        workload: a workload of one request.

    Attributes:
        tolerance: the most by which transformers' own logits in bfloat16 are off.
    """

    def __init__(self, checkpoint: Path, workload: Workload) -> None:
        prompt = torch.tensor(workload.prompts)
        rough = _logits(checkpoint, prompt, torch.bfloat16)
        model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
        with torch.inference_mode():
            self.logits: Tensor = model(prompt, logits_to_keep=1).logits[0, -1]
            output = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=workload.output_tokens,
                do_sample=False,
                pad_token_id=0,
            )
        self.tokens: list[int] = output[0, prompt.shape[1] :].tolist()
        self.tolerance = float((self.logits - rough).abs().max())

    def compare(self, tokens: list[int], width: Width) -> Agreement:
        """Compare a peer's tokens with the reference's. Weights that are quantized are other
        weights: then two logits may differ by a standard deviation of all, where a wrong model
        would be off by four."""
        if width.is_quantized:
            tolerance = float(self.logits.std()) / 2
            return agreement(
                self.tokens, tokens, self.logits, tolerance, "within a standard deviation"
            )
        return agreement(self.tokens, tokens, self.logits, self.tolerance)


def agreement(
    wanted: list[int],
    tokens: list[int],
    logits: Tensor,
    tolerance: float,
    within: str = "in bfloat16",
) -> Agreement:
    """Compare a peer's tokens with those that are wanted.

    Args:
        wanted: the reference's tokens.
        tokens: the peer's tokens.
        logits: the reference's logits of the first token, [vocab_size].
        tolerance: how far each of two logits may be off.
        within: that in words.
    """
    short = float(logits.max() - logits[tokens[0]])
    equal = 0
    while equal < min(len(wanted), len(tokens)) and wanted[equal] == tokens[equal]:
        equal += 1
    return Agreement(short <= 2 * tolerance, tokens[0] == wanted[0], equal, len(wanted), within)


def model_shape(checkpoint: Path) -> ModelShape:
    config = AutoConfig.from_pretrained(checkpoint)
    return trace(find_class(config), config, torch.bfloat16).shape


def _logits(checkpoint: Path, prompt: Tensor, dtype: torch.dtype) -> Tensor:
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype)
    with torch.inference_mode():
        logits: Tensor = model(prompt, logits_to_keep=1).logits[0, -1]
    return logits.float()
