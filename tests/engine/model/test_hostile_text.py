"""Templates and tokenizers of folders that load, and then do not come to an end on some text.

The request at fault ends with a sentence, and the next one is served.
"""

from __future__ import annotations

from functools import partialmethod
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from engine.api.client import ChatMessage, LoadRequest
from engine.api.errors import InvalidRequestError
from engine.model.loading.loader import load_model
from engine.text.pool import EncoderPool
from tests.support.checkpoints import save_checkpoint
from tests.support.zoo import VOCAB_SIZE

SECONDS = 2.0

# The kind of pattern that Qwen's tokenizers split text by.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Cubic: each search stays below the 10 M steps at which the library gives up by itself.
CUBIC = r"x*x*y|."
LOOPS = (
    "{%- if messages[-1].content == 'loop' -%}"
    "{%- for i in range(99999) -%}{%- for j in range(99999) -%}{%- endfor -%}{%- endfor -%}"
    "{%- endif -%}{{ messages[-1].content }}"
)
ANSWER = "{{ messages[-1].content }}"


def byte_pairs(pattern: str, template: str) -> PreTrainedTokenizerFast:
    """A byte-level BPE without merges: each character of "next" is a token."""
    alphabet = [*map(chr, range(33, 127)), "Ġ", "Ċ"]
    vocabulary = {token: at for at, token in enumerate(["<unk>", "</s>", *alphabet])}
    assert len(vocabulary) <= VOCAB_SIZE
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>"
    )
    wrapped.chat_template = template
    return wrapped


@pytest.mark.parametrize(
    ("pattern", "template", "content", "sentence"),
    [
        pytest.param(WORDS, LOOPS, "loop", "did not finish within 2 s$", id="template"),
        pytest.param(CUBIC, ANSWER, "x" * 4000, r"did not finish within 2\.08 s$", id="expression"),
        pytest.param(
            WORDS,
            ANSWER,
            " " * 12_000_000 + "x",
            "^the prompt cannot be encoded: .*retry-limit-in-match over",
            id="blanks",
        ),
    ],
)
def test_text_that_never_ends_ends_its_own_request_alone(
    pattern: str,
    template: str,
    content: str,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(EncoderPool, "begin", partialmethod(EncoderPool.begin, seconds=SECONDS))
    save_checkpoint(tmp_path)
    byte_pairs(pattern, template).save_pretrained(tmp_path)
    request = LoadRequest(str(tmp_path), device="cpu", dtype="float32", num_blocks=40)
    model = load_model(request, lambda *_: None)
    try:
        with pytest.raises(InvalidRequestError, match=sentence) as caught:
            model.codec.encode((ChatMessage("user", content),), None)
        assert caught.value.param == "prompt"
        token_ids = model.codec.encode((ChatMessage("user", "next"),), None)
        assert len(token_ids) == len("next")
    finally:
        model.close()
