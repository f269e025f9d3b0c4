from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from engine.text.job import TableJob
from engine.text.table import Texts, TokenTable
from engine.text.vocabulary import Vocabulary
from tests.support.encoding import Here

BYTES = {f"<0x{byte:02X}>": byte for byte in range(256)}
DECODERS = {
    "bytes": decoders.ByteLevel(),
    "letters": decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()]),
    "none": None,
}


class Encoder:
    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def table(self) -> TokenTable | None:
        return TokenTable.of(self._tokenizer)


def tokenizer_of(vocabulary: dict[str, int], decoder: Any) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    if decoder is not None:
        backend.decoder = decoder
    made: Any = PreTrainedTokenizerFast(
        tokenizer_object=backend, chat_template="{{ messages }}", eos_token="<end>"
    )
    made.add_tokens([AddedToken("more", special=False), AddedToken("Ġ", special=False)])
    return made


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize(
    "vocabulary",
    [
        BYTES | {"▁one": 256, "Ġ": 257, "one": 258, "<end>": 259, "é": 260},
        {"one": 0, "Ġtwo": 3, "<end>": 5, "▁": 9},  # ids with gaps
        {"a\0b": 0, "b": 1, "": 2, "\0": 3, "a": 4, "<end>": 5},  # zero bytes in tokens
    ],
)
def test_a_table_decodes_as_its_tokenizer(vocabulary: dict[str, int], decoder: str) -> None:
    tokenizer = tokenizer_of(vocabulary, DECODERS[decoder])
    job = TableJob()
    table = job.unpack(job.pack(Encoder(tokenizer)))  # type: ignore[arg-type]
    assert table is not None
    one, other = Vocabulary(tokenizer), Vocabulary(table)  # type: ignore[arg-type]
    ids = range(-1, one.size + 2)
    for skips in (True, False):
        for first in range(one.size):
            for pair in ([first], [first, first], [first, 0]):
                expected = one.decode(pair, names_special=skips)
                assert other.decode(pair, names_special=skips) == expected
    for number in ids[1:]:
        assert table.convert_ids_to_tokens(number) == tokenizer.convert_ids_to_tokens(number)
    assert table.convert_ids_to_tokens(-1) is None
    assert table.get_vocab() == tokenizer.get_vocab()
    for token, number in tokenizer.get_vocab().items():
        assert table.token_to_id(token) == number
    for token in ("absent", "\0b", "on", "wo"):
        assert table.token_to_id(token) is None
    assert (other.size, other.longest, other.bytes) == (one.size, one.longest, one.bytes)
    assert (other.added, other.special, other.template) == (one.added, one.special, one.template)
    assert table.eos_token_id == tokenizer.eos_token_id


class CodedDecoder:
    def decode_chain(self, tokens: list[str]) -> list[str]:
        return tokens


def test_a_tokenizer_that_only_its_own_code_decodes_has_no_table() -> None:
    job = TableJob()
    assert Here(Encoder(object())).run(job) is None
    decoder: Any = decoders.Decoder
    coded: Any = tokenizer_of({"one": 0, "<end>": 1}, None)
    coded.backend_tokenizer.decoder = decoder.custom(CodedDecoder())
    assert job.unpack(job.pack(Encoder(coded))) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("strings", [[], [b""], [b"a", b""], [b"a", b"\0", b"b\0c"], [b"a"] * 3])
def test_texts_are_read_as_they_were_made(strings: list[bytes]) -> None:
    texts = Texts.of(strings)
    assert texts.read() == [one.decode() for one in strings]
    if strings:
        starts = texts.starts()
        for one, start, end in zip(strings, starts, starts[1:], strict=False):
            assert texts.joined[start : end - 1] == one
