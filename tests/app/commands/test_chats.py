"""`tui export` and `tui import`."""

from __future__ import annotations

import io
import json
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.commands import chats
from app.commands.cli import app
from app.process.exits import ExitCode
from app.settings.flags import FileFormat
from app.settings.settings import Settings
from app.store.conversation import Conversation, Message
from app.store.drafts import Draft
from app.store.store import Store


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    settings = Settings(data_dir=tmp_path)
    with closing(Store(settings.store_file)) as store:
        for title in ("One", "Two"):
            chat = Conversation(title=title)
            store.save_conversation(chat)
            message = Message(conversation_id=chat.id, parent_id=None, role="user", content="Hi")
            store.save_message(message)
            chat.leaf = message.id
            store.save_conversation(chat)
        draft = Conversation()
        store.save_conversation(draft)
        store.drafts.save(draft.id, Draft("not sent"), Draft())
    return settings


def titles(settings: Settings) -> list[str]:
    with closing(Store(settings.store_file)) as store:
        return sorted(chat.title for chat in store.conversations() if chat.leaf)


def test_what_is_exported_can_be_imported(
    settings: Settings,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert chats.run_export(settings, None, FileFormat.JSON) == ExitCode.OK
    text = capsys.readouterr().out
    assert len(json.loads(text)["chats"]) == 2
    (tmp_path / "all.json").write_text(text)
    assert chats.run_import(settings, tmp_path / "all.json") == ExitCode.OK
    assert capsys.readouterr().out == "imported 2 chats\n"
    assert titles(settings) == ["One", "One", "Two", "Two"]
    stdin = SimpleNamespace(buffer=io.BytesIO(text.encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert chats.run_import(settings, Path("-")) == ExitCode.OK
    assert len(titles(settings)) == 6


def test_one_chat_is_exported_by_its_title(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    assert chats.run_export(settings, "Two", FileFormat.JSON) == ExitCode.OK
    (chat,) = json.loads(capsys.readouterr().out)["chats"]
    assert chat["title"] == "Two"
    assert chats.run_export(settings, "Three", FileFormat.JSON) == ExitCode.FAILED
    assert "no chat has the title or the id 'Three'" in capsys.readouterr().err


def test_chats_are_exported_as_markdown(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    assert chats.run_export(settings, "Two", FileFormat.MARKDOWN) == ExitCode.OK
    text = capsys.readouterr().out
    assert text.startswith("# Two\n\n## You, 20")
    assert text.endswith("\n\nHi\n")
    assert chats.run_export(settings, None, FileFormat.MARKDOWN) == ExitCode.OK
    assert capsys.readouterr().out.count("\n# Two\n") == 1


def test_the_format_is_a_flag(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TUI_DATA_DIR", str(settings.data_dir))
    with pytest.raises(SystemExit) as ended:
        app(["export", "--format", "markdown", "Two"])
    assert ended.value.code == ExitCode.OK
    assert capsys.readouterr().out.startswith("# Two\n")


def test_what_cannot_be_imported_is_told_and_the_rest_is(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chats.run_export(settings, None, FileFormat.JSON)
    whole = json.loads(capsys.readouterr().out)
    whole["chats"][0]["leaf"] = "x"
    (tmp_path / "a.json").write_text(json.dumps(whole))
    assert chats.run_import(settings, tmp_path / "a.json") == ExitCode.FAILED
    told = capsys.readouterr()
    assert "imported 1 chat\n" in told.out
    assert "chats.0 ('One') is left out: leaf is 'x'" in told.err
    assert chats.run_import(settings, tmp_path / "none.json") == ExitCode.FAILED
    assert "none.json: No such file" in capsys.readouterr().err
    (tmp_path / "b.json").write_text("[]")
    assert chats.run_import(settings, tmp_path / "b.json") == ExitCode.FAILED
    assert "b.json: it is not a file of chats" in capsys.readouterr().err
