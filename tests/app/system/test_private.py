"""Files with chats are readable by their owner only, whatever the umask."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from app.process import logs
from app.process.exits import ExitCode
from app.process.process import run
from app.settings.settings import Settings
from app.store.conversation import Conversation
from app.store.store import Store
from app.system.private import tighten


@pytest.fixture(autouse=True)
def lax() -> Iterator[None]:
    """As most systems have it: everybody may read."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def modes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): mode(path) for path in folder.rglob("*")}


def is_private(folder: Path) -> bool:
    return all(not found & 0o077 for found in (mode(folder), *modes(folder).values()))


def test_all_that_a_command_writes_is_for_its_owner_only(own_process: Path) -> None:
    settings = Settings()
    assert settings.data_dir.is_relative_to(own_process)

    def body() -> int:
        with closing(Store(settings.store_file)) as store:
            store.save_conversation(Conversation(title="private"))
            found = modes(settings.data_dir)
            assert {"batchdeck.db", "batchdeck.db-wal", "batchdeck.db-shm"} < set(found)
            assert {m for name, m in found.items() if name.endswith(("db", "wal", "shm"))} == {
                0o600
            }
        raise ZeroDivisionError  # for a crash report

    assert run(settings, body, stderr=False) == ExitCode.CRASHED
    assert len(list(settings.crash_dir.glob("crash-*"))) == 1
    assert mode(settings.data_dir) == mode(settings.log_file.parent) == 0o700
    assert mode(settings.log_file) == 0o600
    assert is_private(own_process / "data")
    assert is_private(own_process / "state")


def test_a_log_that_is_turned_over_stays_private(
    own_process: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "FILE_BYTES", 100)
    file = own_process / "log" / "it.log"
    logs.set_up(file, None, stderr=False)
    for number in range(5):
        logging.getLogger("app.test").info("a line that is longer than half of them: %d", number)
    assert set(modes(file.parent).values()) == {0o600}
    assert len(modes(file.parent)) == 1 + logs.FILES_KEPT


def test_what_others_could_read_is_closed_to_them_and_told_once(own_process: Path) -> None:
    settings = Settings()
    files = [settings.store_file, settings.log_file, Path(f"{settings.log_file}.1")]
    for folder in (settings.data_dir, settings.crash_dir, settings.log_file.parent):
        folder.mkdir(parents=True)
    for file in files:
        file.touch()
        assert mode(file) == 0o644
    for _ in range(2):
        run(settings, lambda: Store(settings.store_file).close() or 0, stderr=False)
    tightened = [*files, settings.data_dir, settings.crash_dir, settings.log_file.parent]
    assert not [path for path in tightened if mode(path) & 0o077]
    told = settings.log_file.read_text()
    for path in tightened:
        assert told.count(f"{path} was open to other users (mode ") == 1


def test_a_folder_that_is_for_others_too_is_left_alone(own_process: Path) -> None:
    shared = own_process / "shared"
    shared.mkdir(mode=0o755)
    (shared / "of others").touch()
    logs.set_up(shared / "it.log", None, stderr=False)
    Store(shared / "batchdeck.db").close()
    assert mode(shared) == 0o755
    assert mode(shared / "of others") == 0o644
    assert mode(shared / "it.log") == mode(shared / "batchdeck.db") == 0o600


def test_what_is_not_there_or_cannot_be_changed_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "file"
    file.touch()
    tighten(tmp_path / "missing")
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: os.getuid() + 1)  # another's
        tighten(file)
    assert mode(file) == 0o644

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refuse)
    tighten(file)
    assert caplog.messages == [f"{file} is open to other users: Operation not permitted"]
