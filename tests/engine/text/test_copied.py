"""Copies of tokenizers, which may come from a file that someone else has written."""

from __future__ import annotations

import pickle
import subprocess
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast
from transformers.utils import logging

from engine.text.copied import CopiedTokenizer, pickle_tokenizer, unpickle_tokenizer


def test_a_copy_encodes_as_the_tokenizer(byte_level: PreTrainedTokenizerFast) -> None:
    copy = pickle.loads(pickle.dumps(CopiedTokenizer(pickle_tokenizer(byte_level))))
    assert type(copy) is type(byte_level)
    assert copy.encode("Grüße, 世界") == byte_level.encode("Grüße, 世界")
    assert copy.chat_template == byte_level.chat_template
    assert copy.added_tokens_decoder == byte_level.added_tokens_decoder


class Calls:
    """An object that calls something when it is unpickled."""

    def __init__(self, function: Any, *arguments: object) -> None:
        self._call = function, arguments

    def __reduce__(self) -> Any:
        return self._call


@pytest.mark.parametrize(
    "hostile",
    [
        lambda path: Calls(path.touch),
        lambda path: Calls(Path.touch, path),
        lambda path: Calls(subprocess.call, ["touch", str(path)]),
        lambda path: Calls(eval, f"open({str(path)!r}, 'w')"),
        lambda path: Calls(logging.set_verbosity, 10),  # a function of transformers
        lambda path: Calls(getattr, PreTrainedTokenizerFast, "from_pretrained"),
    ],
)
def test_a_hostile_copy_calls_nothing(tmp_path: Path, hostile: Any) -> None:
    path = tmp_path / "made"
    with pytest.raises(pickle.UnpicklingError, match="a tokenizer names "):
        unpickle_tokenizer(pickle.dumps(hostile(path)))
    assert not path.exists()


@pytest.mark.parametrize("name", ["logging", "sys", "sys.exit", "logging.os.system"])
def test_a_copy_reaches_nothing_through_a_module_of_the_libraries(name: str) -> None:
    texts = b"".join(
        b"\x8c" + bytes([len(one)]) + one.encode() for one in ("transformers.utils.logging", name)
    )
    content = b"\x80\x04" + texts + b"\x93."
    with pytest.raises(pickle.UnpicklingError, match=r"a tokenizer names transformers\.utils"):
        unpickle_tokenizer(content)


def test_a_tokenizer_with_objects_of_others_is_not_copied(
    byte_level: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(byte_level, "extra", Path("/"), raising=False)
    with pytest.raises(pickle.PicklingError, match="a tokenizer has an object of pathlib"):
        pickle_tokenizer(byte_level)
