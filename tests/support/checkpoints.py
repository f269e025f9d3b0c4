"""Checkpoints of tiny random models on disk, with a tokenizer, as the hub has them."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from tests.support.zoo import VOCAB_SIZE, tiny_model

END_ID = 1


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """One token a character, within the zoo's vocabulary."""
    characters = string.ascii_letters + string.digits + " .,:?!'\n"
    vocabulary = {token: i for i, token in enumerate(["<unk>", "</s>", *characters])}
    assert len(vocabulary) <= VOCAB_SIZE
    assert vocabulary["</s>"] == END_ID
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>")


def save_checkpoint(
    folder: Path, name: str = "llama", *, max_shard_size: str = "1GB", **changes: Any
) -> PreTrainedModel:
    """Save a model of the zoo with a tokenizer; returns the model."""
    model = tiny_model(name, **changes)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    tiny_tokenizer().save_pretrained(folder)
    return model
