"""GGUF files of the zoo's models, as the survey of models writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from benchmarks.coverage.gguf import write_gguf
from tests.support.checkpoints import END_ID, tiny_tokenizer
from tests.support.zoo import tiny_model


def save_gguf(
    file: Path,
    name: str = "llama",
    kind: str = "Q8_0",
    *,
    template: str | None = None,
    part_tensors: int = 0,
    is_tied: bool = False,
    sides: int | None = None,
    **more: Any,
) -> PreTrainedModel:
    """Write a model of the zoo; returns the model as it was before its layers were quantized.

    Args:
        kind: type of the matrices; the others stay in float32.
        part_tensors: most tensors of a part, where the model is written in several.
        is_tied: whether the embedding is the head, too.
        sides: of all matrices, where blocks are larger than those of the zoo's.
        more: keys and strings that are written too.
    """
    # transformers takes the heads of these for as wide as those of all that were published.
    wide = {"head_dim": 128} if name.startswith("qwen3") else {}
    hidden, inner = (64, 96) if sides is None else (sides, sides)
    model = tiny_model(name, hidden_size=hidden, intermediate_size=inner, **wide)
    vocabulary = tiny_tokenizer().get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    # Byte-level tokenizers spell a space and a new line by letters of their own.
    spelled = [*(token.replace(" ", "Ġ").replace("\n", "Ċ") for token in tokens), "He"]
    if template is not None:
        more["tokenizer.chat_template"] = template
    write_gguf(
        file,
        model.config,
        spelled,
        {k: v for k, v in model.state_dict().items() if not (is_tied and k == "lm_head.weight")},
        kind,
        ends={"eos": END_ID, "unk": 0},
        merges=["H e"],
        more=more,
        part_tensors=part_tensors,
    )
    return model
