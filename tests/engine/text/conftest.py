"""Small real tokenizers of each kind, trained here."""

from __future__ import annotations

import json

import pytest
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers import PreTrainedTokenizerFast

TEXT = [
    "Hello world, how are you today? I am fine; the cat is not on the mat, it is outside.",
    "The quick brown fox jumps over the lazy dog and runs away through the forest at night.",
    "日本語のテキスト 中文文本 한국어 텍스트 עברית العربية ไทย Ελληνικά русский",
    "naïve café, emoji 😀 👩‍👩‍👧 🇩🇪 👍🏽 and math ∑ √ ≠",
    "system user assistant model: line by line\nand line after line\n\n",
]
# The words of these become single tokens of the byte-level tokenizer.
FREQUENT = ["the cat is not on the mat."] * 50
MARKERS = [
    *("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|eot_id|>"),
    *("<|start_header_id|>", "<|end_header_id|>", "<start_of_turn>", "<end_of_turn>"),
]


def _wrap(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        clean_up_tokenization_spaces=False,
    )


@pytest.fixture(scope="session")
def byte_level() -> PreTrainedTokenizerFast:
    """Byte-level BPE as GPT-2, Llama 3 and Qwen have it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        [*TEXT, *FREQUENT],
        trainers.BpeTrainer(
            vocab_size=500,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=MARKERS,
            show_progress=False,
        ),
    )
    # Added tokens are shown unless they are special; their text is not in the byte alphabet.
    tokenizer.add_tokens([AddedToken("<think>"), AddedToken("</think>"), AddedToken("é 日本")])
    return _wrap(tokenizer)


def _unigram_pieces(size: int) -> list[tuple[str, float]]:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(
        TEXT[:2],
        trainers.UnigramTrainer(vocab_size=size, unk_token="<unk>", show_progress=False),
    )
    pieces = json.loads(tokenizer.to_str())["model"]["vocab"]
    return [(piece, score) for piece, score in pieces if piece != "<unk>"]


@pytest.fixture(scope="session")
def byte_fallback() -> PreTrainedTokenizerFast:
    """Unigram with byte fallback and the decoder that Llama 2 and Mistral have."""
    byte_tokens = [(f"<0x{byte:02X}>", -20.0) for byte in range(256)]
    vocabulary = [("<unk>", 0.0), *byte_tokens, ("\ufffd", -9.0), *_unigram_pieces(90)]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["<unk>", *MARKERS])
    return _wrap(tokenizer)


@pytest.fixture(scope="session")
def metaspace() -> PreTrainedTokenizerFast:
    """Unigram without byte fallback; its `<0x41>` is a token of six plain characters."""
    vocabulary = [("<unk>", 0.0), ("<0x41>", -5.0), *_unigram_pieces(90)]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["<unk>", *MARKERS])
    return _wrap(tokenizer)


@pytest.fixture(scope="session")
def word_piece() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(
        TEXT,
        trainers.WordPieceTrainer(
            vocab_size=300, special_tokens=["<unk>", *MARKERS], show_progress=False
        ),
    )
    return _wrap(tokenizer)
