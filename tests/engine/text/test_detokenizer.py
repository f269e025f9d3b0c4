from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from engine.text.detokenizer import MAX_WINDOW, Detokenizer
from engine.text.vocabulary import Vocabulary

REPLACEMENT = "\ufffd"
KINDS = ["byte_level", "byte_fallback", "metaspace", "word_piece"]
PADDED = 20  # ids above the vocabulary, as a padded embedding can give them

texts = st.text(max_size=60) | st.text(
    st.sampled_from("ab ,.'\n▁éñ日本語€😀🇩🇪👩\u200d\u0301\ufffd\u2028"), max_size=60
)
seeds = st.lists(st.integers(0, 2**16), max_size=60)


class Kind:
    """A tokenizer and what a detokenizer shares of it."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self.vocabulary = Vocabulary(tokenizer)

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def decode(self, token_ids: list[int]) -> str:
        return self.tokenizer.decode(
            token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )

    def any_ids(self, seeds: Iterable[int]) -> list[int]:
        return [seed % (self.vocabulary.size + PADDED) for seed in seeds]

    def pieces(self, token_ids: Iterable[int]) -> list[str]:
        detokenizer = Detokenizer(self.vocabulary)
        return [*map(detokenizer.push, token_ids), detokenizer.flush()]


@pytest.fixture(scope="session")
def kinds(request: pytest.FixtureRequest) -> dict[str, Kind]:
    return {name: Kind(request.getfixturevalue(name)) for name in KINDS}


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=150, deadline=None)
@given(text=texts)
@example(text="👩‍👩‍👧 🇩🇪 日本語")
@example(text=REPLACEMENT * 40)
@example(text=" " * 40)
def test_pieces_of_any_text_are_its_decoding(kinds: dict[str, Kind], name: str, text: str) -> None:
    kind = kinds[name]
    token_ids = kind.encode(text)
    pieces = kind.pieces(token_ids)
    assert "".join(pieces) == kind.decode(token_ids)
    if REPLACEMENT not in text:
        assert REPLACEMENT not in "".join(pieces)
        assert pieces[-1] == "", "a whole text leaves nothing to flush"


@pytest.mark.parametrize("name", ["byte_level", "metaspace", "word_piece"])
@settings(max_examples=150, deadline=None)
@given(seeds=seeds)
@example(seeds=[9 + 0xBC] * 40)
def test_any_ids_come_out_as_early_as_they_are_certain(
    kinds: dict[str, Kind], name: str, seeds: list[int]
) -> None:
    kind = kinds[name]
    token_ids = kind.any_ids(seeds)
    detokenizer = Detokenizer(kind.vocabulary)
    shown = ""
    for i, token_id in enumerate(token_ids):
        shown += detokenizer.push(token_id)
        whole = kind.decode(token_ids[: i + 1])
        assert shown == whole.removesuffix(REPLACEMENT)
    assert shown + detokenizer.flush() == kind.decode(token_ids)


@settings(max_examples=200, deadline=None)
@given(seeds=seeds, data=st.data())
def test_valid_characters_survive_a_broken_run_of_byte_tokens(
    kinds: dict[str, Kind], seeds: list[int], data: st.DataObject
) -> None:
    kind = kinds["byte_fallback"]
    ids_of_bytes = {byte: token_id for token_id, byte in kind.vocabulary.bytes.items()}
    token_ids = kind.any_ids(seeds)
    for at in range(0, len(token_ids), 8):
        run = data.draw(st.binary(max_size=6) | st.text("aé日😀", max_size=3).map(str.encode))
        token_ids[at:at] = [ids_of_bytes[byte] for byte in run]

    # The same ids with every broken byte written as a whole U+FFFD are valid to the library.
    repaired: list[int] = []
    audible = [i for i in token_ids if not kind.vocabulary.is_silent(i)]
    for is_byte, group in groupby(audible, kind.vocabulary.bytes.__contains__):
        run = list(group)
        if is_byte:
            text = bytes(kind.vocabulary.bytes[i] for i in run).decode(errors="surrogateescape")
            clean = "".join(REPLACEMENT if "\udc80" <= c <= "\udcff" else c for c in text)
            run = [ids_of_bytes[byte] for byte in clean.encode()]
        repaired += run
    assert "".join(kind.pieces(token_ids)) == kind.decode(repaired)


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback"])
def test_a_character_waits_for_its_last_byte(kinds: dict[str, Kind], name: str) -> None:
    kind = kinds[name]
    token_ids = kind.encode("a🜁b")  # alchemical air, not in the training text
    pieces = kind.pieces(token_ids)
    assert [piece for piece in pieces if piece] == ["a", "🜁", "b"]
    assert len(token_ids) > 3


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback"])
def test_half_a_character_is_replaced_at_the_end_only(kinds: dict[str, Kind], name: str) -> None:
    kind = kinds[name]
    token_ids = kind.encode("a🜁")[:-1]
    *pieces, rest = kind.pieces(token_ids)
    assert "".join(pieces) == "a"
    assert rest
    assert set(rest) == {REPLACEMENT}
    if name == "byte_level":
        assert "a" + rest == kind.decode(token_ids)


def test_a_reply_that_begins_with_a_byte_of_space(kinds: dict[str, Kind]) -> None:
    kind = kinds["byte_fallback"]
    token_ids = [t for t, byte in kind.vocabulary.bytes.items() if byte == ord(" ")] * 2
    token_ids += kind.encode("the cat")
    assert kind.decode(token_ids) == "  the cat", "the first of three spaces is dropped"
    assert "".join(kind.pieces(token_ids)) == "  the cat"


def test_special_tokens_are_not_shown(kinds: dict[str, Kind]) -> None:
    kind = kinds["byte_level"]
    token_ids = kind.encode("<s>Hello<|im_end|><think>")
    assert "".join(kind.pieces(token_ids)) == "Hello<think>"


def test_tokens_named_like_bytes_are_text_without_byte_fallback(kinds: dict[str, Kind]) -> None:
    assert kinds["metaspace"].vocabulary.bytes == {}
    assert len(kinds["byte_fallback"].vocabulary.bytes) == 256
    token_id = kinds["metaspace"].tokenizer.convert_tokens_to_ids("<0x41>")
    assert kinds["metaspace"].pieces([token_id]) == ["<0x41>", ""]


class WithoutBackend:
    """A tokenizer of transformers that is written in Python: it has no `backend_tokenizer`."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> object:
        if name == "backend_tokenizer":
            raise AttributeError(name)
        return getattr(self._tokenizer, name)


@pytest.mark.parametrize("name", KINDS)
def test_a_tokenizer_written_in_python_gives_the_same(kinds: dict[str, Kind], name: str) -> None:
    kind = kinds[name]
    token_ids = kind.encode("<s>the cat 👩‍👩‍👧 日本 , it is naïve .</s>")
    detokenizer = Detokenizer(Vocabulary(WithoutBackend(kind.tokenizer)))  # type: ignore[arg-type]
    pieces = [*map(detokenizer.push, token_ids), detokenizer.flush()]
    assert pieces == kind.pieces(token_ids)
    assert "".join(pieces) == kind.decode(token_ids)


class CountingVocabulary(Vocabulary):
    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.lengths: list[int] = []
        super().__init__(tokenizer)

    def decode(self, token_ids: list[int]) -> str:
        self.lengths.append(len(token_ids))
        return super().decode(token_ids)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("text", ["the cat is not on the mat ", "🜁", REPLACEMENT, " "])
def test_cost_of_a_token_is_bounded(kinds: dict[str, Kind], name: str, text: str) -> None:
    kind = kinds[name]
    vocabulary = CountingVocabulary(kind.tokenizer)
    vocabulary.lengths.clear()
    detokenizer = Detokenizer(vocabulary)
    broken = kind.encode("🜁")[-1:]  # a lone last byte, for as long as the reply lasts
    token_ids = (kind.encode(text) * 400)[:400] + broken * 400
    for token_id in token_ids:
        detokenizer.push(token_id)
    assert max(vocabulary.lengths, default=0) <= MAX_WINDOW
    assert len(vocabulary.lengths) <= 1.1 * len(token_ids)
