from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerFast

from engine.api.client import ChatMessage
from engine.api.errors import InvalidRequestError
from engine.text.codec import ChatCodec
from engine.text.encoder import ChatEncoder
from engine.text.job import num_bytes
from engine.text.vocabulary import Vocabulary
from tests.support.encoding import Here

KEY = "model@revision:float32"


def codec_of(tokenizer: PreTrainedTokenizerFast) -> ChatCodec:
    return ChatCodec(Vocabulary(tokenizer), Here(ChatEncoder(tokenizer, KEY)), KEY)


def test_token_ids_are_held_to_the_vocabulary(byte_level: PreTrainedTokenizerFast) -> None:
    codec = codec_of(byte_level)
    last = len(byte_level) - 1
    codec.check_token_ids((0, last), "prompt")
    for bad in (-1, last + 1, 2**40, True, "7", 1.0):
        with pytest.raises(InvalidRequestError) as caught:
            codec.check_token_ids((0, bad), "prompt")  # type: ignore[arg-type]
        assert caught.value.message == (
            f"prompt[1] is {bad!r}; it must be a token id from 0 to {last}"
        )
        assert caught.value.param == "prompt"


def test_each_reply_has_its_own_detokenizer(byte_level: PreTrainedTokenizerFast) -> None:
    codec = codec_of(byte_level)
    air = byte_level.encode("🜁", add_special_tokens=False)
    one, other = codec.detokenizer(), codec.detokenizer()
    assert one.push(air[0]) == ""
    assert "".join(map(other.push, air)) == "🜁"
    assert "".join(map(one.push, air[1:])) == "🜁"


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback", "metaspace", "word_piece"])
def test_no_prompt_that_fits_is_too_large(name: str, request: pytest.FixtureRequest) -> None:
    """A text of nothing but the longest token is as large as one may be."""
    tokenizer = request.getfixturevalue(name)
    vocabulary, codec = Vocabulary(tokenizer), codec_of(tokenizer)
    spelt = (vocabulary.utf8(token_id) for token_id in range(vocabulary.size))
    assert vocabulary.longest >= max(map(len, spelt))
    text = "x" * (vocabulary.longest - 1)
    codec.check_size(num_bytes([ChatMessage("system", text), ChatMessage("user", "x")]), 1)
    with pytest.raises(InvalidRequestError) as caught:
        codec.check_size(num_bytes([ChatMessage("system", text), ChatMessage("user", "é")]), 1)
    longest = vocabulary.longest
    assert caught.value.param == "prompt"
    assert caught.value.message == (
        f"the prompt is too long: {longest + 1} bytes of text > {longest} allowed, {longest} "
        "(of the longest token) for each token (maximum context length is 1 tokens)"
    )


def test_what_is_no_text_has_no_size() -> None:
    """The encoder says why the text is invalid."""
    assert num_bytes([ChatMessage("user", None), ChatMessage("user", "\ud83d")]) == 3  # type: ignore[arg-type]
