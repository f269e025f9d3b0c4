"""random_model: a model of 387 M random parameters with a tokenizer, as a folder to load from."""

from __future__ import annotations

import json
import string
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from benchmarks.model_387m import VOCAB_SIZE, make_model

# A token in so many ends a paragraph: the paragraphs of a chat are that long.
PARAGRAPH = 60
MAX_POSITIONS = 2048
_END = "<|im_end|>"
_SPECIAL = ("<|endoftext|>", "<|im_start|>", _END)
_TEMPLATE = (
    "{%- for message in messages -%}{{- '<|im_start|>' + message['role'] + ' ' + message['content']"
    " + '<|im_end|>' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant ' -}}{%- endif -%}"
)


def save(folder: Path) -> None:
    """Write weights in bfloat16, configuration and tokenizer. What is drawn from the model is
    words, in paragraphs."""
    model = make_model(
        max_position_embeddings=MAX_POSITIONS,
        bos_token_id=None,
        eos_token_id=_SPECIAL.index(_END),
    )
    model.save_pretrained(folder)
    _tokenizer().save(str(folder / "tokenizer.json"))
    about = {
        "tokenizer_class": "TokenizersBackend",
        "backend": "tokenizers",
        "chat_template": _TEMPLATE,
        "eos_token": _END,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(about), encoding="utf-8")


def _tokenizer() -> Tokenizer:
    """Characters, and made words that follow a space."""
    tokens = [*_SPECIAL, *string.printable]
    letters = string.ascii_lowercase
    while len(tokens) < VOCAB_SIZE:
        number, word = len(tokens), " "
        while number:
            number, letter = divmod(number, len(letters))
            word += letters[letter]
        tokens.append(f"{word}.\n\n" if len(tokens) % PARAGRAPH == 0 else word)
    tokenizer = Tokenizer(models.WordLevel({t: i for i, t in enumerate(tokens)}, unk_token=" "))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r" ?\w+|."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(list(_SPECIAL))
    return tokenizer
