"""Files named below a folder that this user may not enter, as /root for a service's own user."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.bench.plots import check_charts
from app.commands import batch, doctor
from app.process.console import check_folder
from app.settings.settings import Settings, SettingsError
from engine.api.errors import EngineError
from engine.model.catalog.registry import Registry
from engine.model.files.checkpoint import find_gguf, has_weights


@pytest.fixture
def closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder closed to this user, who may be root, for whom none is."""
    folder = tmp_path / "closed"
    folder.mkdir()
    stat, access = os.stat, os.access

    def is_below(path: object) -> bool:
        return isinstance(path, (str, Path)) and folder in Path(path).parents

    def closed_stat(path: Any, *args: Any, **options: Any) -> os.stat_result:
        if is_below(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, *args, **options)

    def closed_access(path: Any, mode: int, **options: Any) -> bool:
        shut = is_below(path) or (isinstance(path, (str, Path)) and Path(path) == folder)
        return not shut and access(path, mode, **options)

    monkeypatch.setattr(os, "stat", closed_stat)
    monkeypatch.setattr(os, "access", closed_access)
    return folder


def find(path: Path) -> object:
    return Registry.read().find(str(path))


@pytest.mark.parametrize(
    ("use", "name", "told"),
    [
        (find, "model", "{path} cannot be read: Permission denied"),
        (find, "model.gguf", "{path} cannot be read: Permission denied"),
        (find_gguf, "", "{path} cannot be read: Permission denied"),
        (
            lambda path: check_charts("--svg", path),
            "charts",
            "--svg: {path.parent} must be writable",
        ),
        (lambda path: check_folder("--json", path), "a/b.json", "--json: there is no folder"),
    ],
    ids=["folder", "GGUF file", "folder of an entry", "charts", "report"],
)
def test_it_is_refused_with_its_name_and_the_reason(
    closed: Path, use: Callable[[Path], object], name: str, told: str
) -> None:
    path = closed / name
    with pytest.raises((EngineError, SettingsError)) as raised:
        use(path)
    assert str(raised.value).startswith(told.format(path=path))


def test_a_model_of_the_registry_has_no_weights_there(closed: Path) -> None:
    assert not has_weights(closed)
    assert not has_weights(closed / "model.gguf")


def test_answers_that_cannot_be_seen_are_none_until_the_file_is_opened(closed: Path) -> None:
    assert list(batch._answered(closed / "out.jsonl")) == []


def test_doctor_says_which_files_cannot_be_written(
    closed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "cache_folder", lambda: closed / "cache" / "batchdeck")
    settings = Settings(data_dir=closed / "data", log_file=closed / "log" / "batchdeck.log")
    doctor.run(settings, closed / "config.toml", None)
    text = capsys.readouterr().out
    assert f"store: {closed}/data/batchdeck.db cannot be written; set data_dir" in text
    assert f"log: {closed}/log/batchdeck.log cannot be written; set log_file" in text
    assert f"{closed}/cache/batchdeck cannot be written; set XDG_CACHE_HOME" in text
