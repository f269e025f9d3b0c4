from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import decoders
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


def test_a_token_of_whole_characters_has_one_text_where_tokens_are_only_joined(
    byte_level: PreTrainedTokenizerFast,
) -> None:
    vocabulary = Vocabulary(byte_level)
    (cat,) = byte_level.encode(" the", add_special_tokens=False)
    assert vocabulary.plain(cat) == " the"
    half = byte_level.convert_tokens_to_ids("\u00e6")  # the byte 0xE6 alone
    assert vocabulary.plain(half) is None
    assert vocabulary.plain(byte_level.convert_tokens_to_ids("<|im_end|>")) == ""
    assert vocabulary.plain(vocabulary.size + 5) == ""
    # Its text goes another way through the decoder than that of the rest.
    assert vocabulary.plain(byte_level.convert_tokens_to_ids("é 日本")) is None


@pytest.mark.parametrize("kind", ["metaspace", "word_piece", "byte_fallback"])
def test_no_token_has_one_text_where_a_decoder_looks_at_its_neighbours(
    kind: str, request: pytest.FixtureRequest
) -> None:
    vocabulary = Vocabulary(request.getfixturevalue(kind))
    assert all(vocabulary.plain(token_id) is None for token_id in range(vocabulary.size))


def test_nor_where_something_follows_the_decoder_of_bytes(
    byte_level: PreTrainedTokenizerFast,
) -> None:
    tokenizer = deepcopy(byte_level)
    backend = tokenizer.backend_tokenizer
    backend.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    assert Vocabulary(tokenizer).plain(tokenizer.convert_tokens_to_ids("a")) is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=TEXTS)
def test_special_tokens_are_named_if_that_is_wanted(
    byte_level: PreTrainedTokenizerFast, text: str
) -> None:
    vocabulary, marked = Vocabulary(byte_level), f"<|im_start|>{text}<|im_end|>"
    token_ids = byte_level.encode(marked, add_special_tokens=False)
    assert vocabulary.decode(token_ids, names_special=True) == marked
    assert vocabulary.decode(token_ids) == text


class Slow:
    """A tokenizer without a backend, whose vocabulary is made anew for each call."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer
        self.calls = 0

    def get_vocab(self) -> dict[str, int]:
        self.calls += 1
        return self._tokenizer.get_vocab()

    def __getattr__(self, name: str) -> Any:
        if name == "backend_tokenizer":
            raise AttributeError(name)
        return getattr(self._tokenizer, name)


def test_a_tokenizer_without_a_backend_lists_its_vocabulary_once(
    byte_fallback: PreTrainedTokenizerFast,
) -> None:
    slow = Slow(byte_fallback)
    vocabulary = Vocabulary(slow)
    assert slow.calls == 1
    assert sorted(vocabulary.bytes.values()) == list(range(256))
    assert vocabulary.bytes == Vocabulary(byte_fallback).bytes
