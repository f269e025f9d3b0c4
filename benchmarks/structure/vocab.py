"""Vocab: a vocabulary, of the built-in model or trained on the spot."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from engine.builtin import MODEL_DIR
from engine.structure.words import Words
from engine.text.encoder import ChatEncoder
from engine.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class Vocab:
    """A vocabulary.

    Attributes:
        encode: makes the tokens of a text.
    """

    name: str
    words: Words
    encode: Callable[[str], list[int]]


def builtin() -> Vocab:
    """That of the built-in model."""
    return _of("built-in", AutoTokenizer.from_pretrained(MODEL_DIR), 0)


def trained(size: int, megabytes: int) -> Vocab:
    """Byte-level BPE of so many tokens; ids without a token are at its end, if it has fewer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        _texts(megabytes << 20),
        trainers.BpeTrainer(
            vocab_size=size,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=["<|end|>"],
            max_token_length=64,
            show_progress=False,
        ),
    )
    made = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, eos_token="<|end|>"
    )
    return _of(f"{size:,}", made, size)


def _texts(most: int) -> Iterator[str]:
    """The text of installed packages, so many bytes at most."""
    for path in sorted(Path(sysconfig.get_paths()["purelib"]).rglob("*.py")):
        text = path.read_text(errors="replace")
        most -= len(text)
        if most < 0:
            return
        yield text


def _of(name: str, tokenizer: Any, size: int) -> Vocab:
    vocabulary = Vocabulary(tokenizer)
    utf8 = ChatEncoder(tokenizer, name).words()
    ends = [tokenizer.eos_token_id]
    words = Words.of(utf8, vocabulary.special.keys(), ends, max(size, vocabulary.size))
    return Vocab(name, words, lambda text: tokenizer.encode(text, add_special_tokens=False))
