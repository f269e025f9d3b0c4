"""Tokenizers of GGUF files give the ids that llama.cpp gives (`vocabularies` says how it was
asked)."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.api.errors import ModelError
from engine.model.files.gguf.header import read_header
from engine.model.files.gguf.splits import SPLITS
from engine.model.files.gguf.tokenizer import TokenizerRecipe, build_tokenizer, end_token_ids
from engine.text.table import Texts
from engine.text.vocabulary import Vocabulary
from tests.engine.model.files.gguf.vocabularies import (
    KINDS,
    TEXTS,
    by_score,
    expected_ids,
    in_bytes,
    in_characters,
    keys_of,
    read_expected,
    write_vocabulary,
)


def build(folder: Path, keys: dict[str, Any]) -> Any:
    path = folder / "vocabulary.gguf"
    write_vocabulary(path, keys)
    return build_tokenizer(read_header(path).metadata, path)


def bytes_keys(**more: Any) -> dict[str, Any]:
    return in_bytes(read_expected()) | {"pre": "gpt-2"} | more


def refusal(folder: Path, keys: dict[str, Any]) -> str:
    with pytest.raises(ModelError) as caught:
        build(folder, keys)
    return caught.value.message.removeprefix(f"{folder / 'vocabulary.gguf'} ")


def test_each_name_and_kind_was_asked_about() -> None:
    data = read_expected()
    assert data["of"].keys() == SPLITS.keys() | KINDS.keys()
    assert set(data["split in characters"]) == {n for n, one in SPLITS.items() if not one.in_bytes}
    assert data["source"] == "llama-cpp-python 0.3.36"
    # The texts tell the expressions apart: no two of them cut all texts alike.
    distinct = {tuple(data["of"][name]) for name in SPLITS}
    assert len(distinct) == len({(one.patterns, one.ignores_merges) for one in SPLITS.values()})


@pytest.mark.parametrize("name", read_expected()["of"])
def test_ids_are_those_of_llama_cpp(tmp_path: Path, name: str) -> None:
    data = read_expected()
    tokenizer = build(tmp_path, keys_of(name, data, data["split in characters"]))
    found = [tokenizer.encode(text, add_special_tokens=False) for text in TEXTS]
    for text, own, theirs in zip(TEXTS, found, expected_ids(name), strict=True):
        assert own == theirs, text


@pytest.mark.parametrize("name", ["qwen2", "smollm", "gemma4", "by score, no prefix"])
def test_what_was_encoded_is_decoded(tmp_path: Path, name: str) -> None:
    data = read_expected()
    tokenizer = build(tmp_path, keys_of(name, data, data["split in characters"]))
    vocabulary = Vocabulary(tokenizer)
    spelled = "▁" if name in data["split in characters"] or name in KINDS else ""
    for text in TEXTS:
        if spelled and spelled in text:
            continue  # Such a letter is a space to it.
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert vocabulary.decode(ids, names_special=True) == text


def test_a_tokenizer_goes_to_another_process(tmp_path: Path) -> None:
    tokenizer = build(tmp_path, bytes_keys(more={"tokenizer.chat_template": "{{ messages }}"}))
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again.chat_template == "{{ messages }}"
    assert again.encode(TEXTS[0]) == tokenizer.encode(TEXTS[0])
    assert again.added_tokens_decoder == tokenizer.added_tokens_decoder


@pytest.mark.parametrize("name", read_expected()["of"])
def test_a_recipe_is_a_decoder_here_and_whole_once_it_was_unpickled(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = read_expected()
    keys = keys_of(name, data, data["split in characters"])
    whole = build(tmp_path, keys | {"more": {"tokenizer.chat_template": "{{ messages }}"}})
    path = tmp_path / "vocabulary.gguf"
    recipe = TokenizerRecipe(read_header(path).metadata, path)
    own = recipe.table()
    one, other = Vocabulary(whole), Vocabulary(own)
    for ids in ([number, number] for number in range(one.size)):
        assert other.decode(ids) == one.decode(ids)
    assert (other.added, other.special, other.bytes) == (one.added, one.special, one.bytes)
    assert (other.longest, other.template) == (one.longest, one.template)
    assert own.eos_token_id == whole.eos_token_id
    monkeypatch.setattr("engine.model.files.kept.KEPT", True)
    for pairs in (None, tmp_path, tmp_path):  # not kept, kept, and read
        recipe = TokenizerRecipe(read_header(path).metadata, path, pairs)
        again = pickle.loads(pickle.dumps(recipe))
        found = [again.encode(text) for text in TEXTS]
        assert found == [whole.encode(text) for text in TEXTS], pairs


@pytest.mark.parametrize(
    ("keys", "stated", "around"),
    [
        (in_bytes, {"pre": "gpt-2"}, ([], [])),
        (in_bytes, {"pre": "gpt-2", "add_bos_token": True}, ([2], [])),
        (in_bytes, {"pre": "llama-bpe"}, ([2], [])),
        (in_bytes, {"pre": "llama-bpe", "add_bos_token": False}, ([], [])),
        (by_score, {}, ([2], [])),
        (by_score, {"add_bos_token": False}, ([], [])),
        (KINDS["by likelihood"], {}, ([], [3])),
    ],
)
def test_what_is_put_around_a_text(
    tmp_path: Path, keys: Any, stated: dict[str, Any], around: tuple[list[int], list[int]]
) -> None:
    tokenizer = build(tmp_path, keys(read_expected()) | {"bos": 2, "eos": 3} | stated)
    plain = tokenizer.encode("one", add_special_tokens=False)
    assert tokenizer.encode("one") == [*around[0], *plain, *around[1]]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (2, 3)


def test_control_tokens_are_special_and_those_of_the_user_are_text(tmp_path: Path) -> None:
    tokenizer = build(tmp_path, by_score(read_expected()))
    vocabulary = Vocabulary(tokenizer)
    # The file calls <|im_end|> the user's, and all the same it ends a turn wherever it is.
    assert vocabulary.special == {
        0: "<|begin|>",
        1: "<|im_end|>",
        2: "<|im_start|>",
        3: "<|endoftext|>",
    }
    keys = bytes_keys()
    keys["tokens"][2] = "<think>"
    keys["types"][2] = 4
    vocabulary = Vocabulary(build(tmp_path, keys))
    assert 2 not in vocabulary.special
    assert vocabulary.added[2] == "<think>"
    assert vocabulary.decode([2]) == "<think>"


def test_what_fills_up_the_embedding_is_no_text(tmp_path: Path) -> None:
    keys = bytes_keys()
    number = len(keys["tokens"])
    keys |= {
        "tokens": [*keys["tokens"], f"[PAD{number}]"],
        "types": [*keys["types"], 5],
    }
    tokenizer = build(tmp_path, keys)
    assert tokenizer.convert_ids_to_tokens(number) is None
    assert Vocabulary(tokenizer).utf8(number) == b""


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({}, None),
        ({"": "plain"}, "plain"),
        ({"": "plain", ".tool_use": "tools"}, {"default": "plain", "tool_use": "tools"}),
    ],
)
def test_chat_templates(tmp_path: Path, stated: dict[str, str], expected: object) -> None:
    more = {f"tokenizer.chat_template{name}": text for name, text in stated.items()}
    assert build(tmp_path, bytes_keys(more=more)).chat_template == expected


def test_white_space_behind_the_tokens_of_phi_3(tmp_path: Path) -> None:
    keys = by_score(read_expected()) | {"more": {"general.name": "Phi-3.5 mini"}}
    tokenizer = build(tmp_path, keys)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    found = tokenizer.encode("<|im_end|>\n one", add_special_tokens=False)
    assert found == [end, *tokenizer.encode("one", add_special_tokens=False)]


def _with(**changes: Any) -> dict[str, Any]:
    return bytes_keys() | changes


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (_with(pre="made-up"), "splits text by tokenizer.ggml.pre 'made-up', which is unknown; "),
        (_with(model="rwkv"), "has a tokenizer of the kind 'rwkv'; read are gpt2, gemma4, llama, "),
        (
            _with(tokens=["a", "b", "a"], types=[1, 1, 1]),
            "is corrupt: tokenizer.ggml.tokens has a ",
        ),
        (_with(types=[1, 1]), "is corrupt: tokenizer.ggml.token_type does not state a kind for "),
        (_with(merges=None), "is corrupt: tokenizer.ggml.merges is missing"),
        (_with(model="llama"), "is corrupt: tokenizer.ggml.scores does not state a score for each"),
        (
            in_characters(read_expected())
            | {"model": "llama", "merges": None, "scores": [0.0] * 2000},
            "has tokenizer.ggml.scores that are all 0, which do not tell what is joined first",
        ),
    ],
)
def test_what_is_not_read(tmp_path: Path, keys: dict[str, Any], sentence: str) -> None:
    assert refusal(tmp_path, keys).startswith(sentence)


def test_a_file_without_tokens() -> None:
    with pytest.raises(ModelError, match=r"^x\.gguf has no tokenizer: tokenizer\.ggml\.tokens is"):
        build_tokenizer({"tokenizer.ggml.model": "gpt2"}, Path("x.gguf"))


@pytest.mark.parametrize(
    ("tokens", "stated", "ends"),
    [
        (["a", "b", "c"], {}, set()),
        (["a", "b", "c"], {"eos": 1, "eot": 2, "eom": 0}, {0, 1, 2}),
        (["a", "b"], {"eos": 7}, set()),
        (["a", "<|im_end|>", "<|endoftext|>", "<|fim_pad|>"], {}, {1, 2, 3}),
        # Where replies go on behind the end of a message, that is no end.
        (["<|end|>", "<|return|>", "<|call|>"], {"eos": 1}, {1, 2}),
        (["<|end|>", "<|flush|>", "<|calls|>"], {}, {1, 2}),
        (["<|end|>", "a"], {}, {0}),
        (["</s>", "a"], {}, {0}),
    ],
)
def test_end_tokens(tokens: list[str], stated: dict[str, int], ends: set[int]) -> None:
    metadata = {f"tokenizer.ggml.{name}_token_id": number for name, number in stated.items()}
    assert (
        end_token_ids(
            metadata | {"tokenizer.ggml.tokens": Texts.of([one.encode() for one in tokens])}
        )
        == ends
    )


def test_what_strikes_text_out_in_html_is_no_end() -> None:
    metadata = {"tokenizer.ggml.tokens": Texts.of([b"<s>", b"</s>"])}
    for kind, ends in ((3, {1}), (1, set()), (4, set())):
        types = np.array([3, kind], np.int32)
        assert end_token_ids(metadata | {"tokenizer.ggml.token_type": types}) == ends
