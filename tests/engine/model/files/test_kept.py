"""Files that are kept between loadings."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.model.files import kept


@pytest.fixture(autouse=True)
def _keeping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "KEPT", True)


def test_what_was_made_is_read_later(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    assert kept.content_of(path, lambda: b"one", most=1000) == b"one"
    assert kept.content_of(path, lambda: b"two", most=1000) == b"one"


@pytest.mark.parametrize("size", [0, 5, 34, 36])
def test_a_broken_file_is_made_anew(tmp_path: Path, size: int) -> None:
    path = tmp_path / "file"
    kept.content_of(path, lambda: b"one", most=1000)
    path.write_bytes((path.read_bytes() + b"x")[:size])
    assert kept.content_of(path, lambda: b"two", most=1000) == b"two"
    assert kept.content_of(path, lambda: b"three", most=1000) == b"two"


def test_a_folder_that_cannot_be_written_costs_the_file_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "inside"
    assert kept.content_of(path, lambda: b"one", most=1000) == b"one"
    assert str(path) in caplog.text


def test_the_oldest_files_are_removed(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        kept.content_of(tmp_path / name, lambda: bytes(100), most=270)
    assert {one.name for one in tmp_path.iterdir()} == {"b", "c"}
