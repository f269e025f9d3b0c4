"""The tokenizer of a folder: read by transformers once, and from kept files by later loads."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.model.files import kept, tokenizer
from engine.model.files.folder import check_folder
from engine.model.files.tokenizer import FolderTokenizer
from engine.text.copied import pickle_tokenizer
from engine.text.table import TokenTable

TEXT = "Hello, Grüße 世界"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(kept, "KEPT", True)
    monkeypatch.setattr(kept, "cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "cache" / "tokenizers"


def load(folder: Path) -> tuple[Any, TokenTable | None]:
    """The tokenizer of an encoding process, and the program's table, as a load makes them."""
    recipe = FolderTokenizer(folder, check_folder(folder))
    read = pickle.loads(pickle.dumps(recipe))
    table = recipe.table(lambda: TokenTable.of(read))
    copy = pickle.loads(pickle.dumps(recipe.copied(lambda: pickle_tokenizer(read))))
    assert copy.encode(TEXT) == read.encode(TEXT)
    return read, table


def no_reading(folder: Path) -> None:
    raise AssertionError(f"{folder} was read again")


def test_a_later_load_reads_the_copy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, table = load(folder)
    monkeypatch.setattr(tokenizer, "read_tokenizer", no_reading)
    monkeypatch.setattr(TokenTable, "of", no_reading)
    again, same = load(folder)
    assert again.encode(TEXT) == read.encode(TEXT)
    assert again.chat_template == read.chat_template
    assert table is not None
    assert same is not None
    assert same.get_vocab() == table.get_vocab()


def test_a_tokenizer_that_only_its_own_code_decodes_has_no_table(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        recipe = FolderTokenizer(folder, check_folder(folder))
        assert recipe.table(lambda: None) is None


def change_template(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ 'changed' }}")


def change_config(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token": "a"}))


@pytest.mark.parametrize("change", [change_template, change_config])
def test_a_changed_folder_is_read_again(folder: Path, change: Callable[[Path], None]) -> None:
    before, _ = load(folder)
    change(folder)
    after, table = load(folder)
    found = (after.chat_template, after.eos_token)
    assert found != (before.chat_template, before.eos_token)
    assert table is not None
    assert table.chat_template == after.chat_template


@pytest.mark.parametrize("damage", [lambda content: content[:-1], lambda content: b"x" + content])
def test_a_damaged_copy_is_made_again(
    folder: Path, cache: Path, damage: Callable[[bytes], bytes]
) -> None:
    read, _ = load(folder)
    whole = {path: path.read_bytes() for path in cache.iterdir()}
    assert len(whole) == 2
    for path, content in whole.items():
        path.write_bytes(damage(content))
    again, _ = load(folder)
    assert again.encode(TEXT) == read.encode(TEXT)
    assert {path: path.read_bytes() for path in cache.iterdir()} == whole


def test_a_hostile_copy_is_not_used(
    folder: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    read, _ = load(folder)
    [path] = [one for one in cache.iterdir() if not one.suffix]
    path.unlink()
    kept.store(path, pickle.dumps(Path("/")), most=1 << 20)  # its digest is right
    again = pickle.loads(pickle.dumps(FolderTokenizer(folder, check_folder(folder))))
    assert again.encode(TEXT) == read.encode(TEXT)
    assert "is not used: UnpicklingError: a tokenizer names pathlib." in caplog.text
    load(folder)  # another copy has its place
    assert path.exists()
    caplog.clear()
    load(folder)
    assert caplog.text == ""


def test_a_folder_may_go_once_its_tokenizer_is_kept(folder: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(folder, tmp_path / "moved")
    recipe = FolderTokenizer(moved, check_folder(moved))
    read = pickle.loads(pickle.dumps(recipe))
    recipe.copied(lambda: pickle_tokenizer(read))
    shutil.rmtree(moved)
    assert pickle.loads(pickle.dumps(recipe)).encode(TEXT) == read.encode(TEXT)
