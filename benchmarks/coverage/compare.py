"""Compare: what a core made of the requests beside transformers' own `generate`.

In float32, an output is `equal` if it has the tokens of `generate`. It is a `tie` if it differs and
each of its tokens, after those before it, is the model's own best or lies less than 1e-4 below it.

In a coarser type, and where weights are codes, so that activations are rounded, or the weights
themselves to 8 bits, tokens of a random model part soon, whoever computes them. Then the model in
float32, with the same rounded weights, says of each token how far it lies below the best after
those before it, in standard deviations of all logits there. Outputs are `close` if the mean over
all tokens is below 0.25; a token taken at random lies about 3 below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoConfig, PreTrainedModel

from benchmarks.coverage.build import model_class
from benchmarks.coverage.requests import OUTPUT_TOKENS

NEAR_TIE = 1e-4
CLOSE = 0.25
# Fewer different tokens in an output than these show little.
_VARIED = 3

Tokens = Sequence[int]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a comparison.

    Attributes:
        agrees: whether the outputs are what the model itself gives.
        result: `equal`, `tie`, `close` or `differs`, with the number it rests on.
        note: why it shows less than it should; empty if it does not.
    """

    agrees: bool
    result: str
    note: str = ""


class Reference:
    """The model as transformers computes it, with its own eager attention, in float32.

    Args:
        folder: of plain weights.
        dtype: the type that weights are rounded to first.
    """

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        loaded = model_class(config).from_pretrained(
            folder, dtype=dtype, attn_implementation="eager", local_files_only=True
        )
        self._model: PreTrainedModel = loaded.float().eval()
        self._model.generation_config.eos_token_id = None

    @torch.inference_mode()
    def generate(self, prompt: Tokens) -> list[int]:
        """Greedy tokens."""
        ids = torch.tensor([prompt])
        output = self._model.generate(  # type: ignore[operator]
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=OUTPUT_TOKENS,
            do_sample=False,
            pad_token_id=0,
        )
        tokens: list[int] = output[0, len(prompt) :].tolist()
        return tokens

    @torch.inference_mode()
    def below(self, prompt: Tokens, output: Tokens) -> tuple[list[float], list[float]]:
        """How far each token of an output lies below the best one after those before it: as logits,
        and in standard deviations of the logits there."""
        ids = torch.tensor([[*prompt, *output]])
        logits = self._model(ids, use_cache=False).logits[0, len(prompt) - 1 : -1].double()
        chosen = logits.gather(1, torch.tensor(output)[:, None])[:, 0]
        gaps = logits.amax(-1) - chosen
        return gaps.tolist(), (gaps / logits.std(-1)).tolist()


def compare(
    reference: Reference, prompts: Sequence[Tokens], outputs: Sequence[Tokens]
) -> Comparison:
    """Outputs of a model in float32 beside `generate`."""
    expected = [reference.generate(prompt) for prompt in prompts]
    pairs = list(zip(prompts, outputs, strict=True))
    same = [list(output) == wanted for output, wanted in zip(outputs, expected, strict=True)]
    fewest = min(len(set(wanted)) for wanted in expected)
    note = f"an output has {fewest} different tokens only" if fewest < _VARIED else ""
    if all(same):
        return Comparison(True, "equal", note)
    parted = [pair for pair, is_same in zip(pairs, same, strict=True) if not is_same]
    furthest = max(max(reference.below(*pair)[0]) for pair in parted)
    counted = f"{sum(same)}/{len(same)} equal, at most {furthest:.2g} below the best"
    is_tie = furthest < NEAR_TIE
    return Comparison(is_tie, f"{'tie' if is_tie else 'differs'}: {counted}", note)


def compare_coarse(
    reference: Reference, prompts: Sequence[Tokens], outputs: Sequence[Tokens]
) -> Comparison:
    """Outputs of a model in a coarser type beside the same weights in float32."""
    gaps = [gap for pair in zip(prompts, outputs, strict=True) for gap in reference.below(*pair)[1]]
    mean = sum(gaps) / len(gaps)
    is_close = mean < CLOSE
    return Comparison(is_close, f"{'close' if is_close else 'differs'}: {mean:.2g} below the best")
