from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from engine.text.vocabulary import Vocabulary

TEXTS = st.text("the catmonis日本语😀é\u00ad\n ", min_size=1, max_size=30)


def spell(tokenizer: PreTrainedTokenizerFast, token_ids: list[int]) -> bytes:
    vocabulary = Vocabulary(tokenizer)
    return b"".join(vocabulary.utf8(token_id) for token_id in token_ids)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=TEXTS)
def test_the_bytes_of_byte_level_tokens_are_those_of_their_text(
    byte_level: PreTrainedTokenizerFast, text: str
) -> None:
    assert spell(byte_level, byte_level.encode(text)) == text.encode()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=TEXTS)
def test_the_bytes_of_byte_fallback_tokens_are_those_of_their_text_behind_another(
    byte_fallback: PreTrainedTokenizerFast, text: str
) -> None:
    spelt = spell(byte_fallback, byte_fallback.encode(text, add_special_tokens=False))
    assert spelt.decode().removeprefix(" ") == text.removeprefix(" ")


@pytest.mark.parametrize("kind", ["metaspace", "word_piece"])
def test_a_token_keeps_the_space_that_the_first_of_a_text_loses(
    kind: str, request: pytest.FixtureRequest
) -> None:
    tokenizer: PreTrainedTokenizerFast = request.getfixturevalue(kind)
    ids = tokenizer.encode("you are on the mat", add_special_tokens=False)
    assert len(ids) > 4
    assert spell(tokenizer, ids).decode() == " you are on the mat"


def test_every_byte_is_reached(byte_level: PreTrainedTokenizerFast) -> None:
    vocabulary = Vocabulary(byte_level)
    single = {vocabulary.utf8(i) for i in byte_level.get_vocab().values()}
    assert {bytes((byte,)) for byte in range(256)} <= single


def test_special_and_added_tokens_go_by_their_names_and_padding_by_none(
    byte_level: PreTrainedTokenizerFast,
) -> None:
    vocabulary = Vocabulary(byte_level)
    for name in ("<|im_end|>", "<think>", "é 日本"):
        token_id = byte_level.convert_tokens_to_ids(name)
        assert vocabulary.utf8(token_id) == name.encode()
    assert vocabulary.utf8(vocabulary.size + 5) == b""
