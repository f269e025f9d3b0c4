from __future__ import annotations

from pathlib import Path

import pytest

from app.screens.file_paths import completed


def test_a_path_may_become_what_begins_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "notes").mkdir()
    for name in ("notes/one.md", "notes/two.md", "note.txt", ".hidden", "od\nd"):
        (tmp_path / name).touch()
    assert completed("no") == ["note.txt", "notes/"]
    assert completed("notes/") == ["notes/one.md", "notes/two.md"]
    assert completed("notes/t") == ["notes/two.md"]
    assert completed("~/note.") == ["~/note.txt"]
    assert completed(f"{tmp_path}/o") == []
    assert completed("./") == ["./note.txt", "./notes/"]
    assert completed(".h") == [".hidden"]
    assert completed("none/") == []
    assert completed("note.txt/") == []
    assert completed("\0/") == []
