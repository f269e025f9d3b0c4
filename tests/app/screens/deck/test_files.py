"""Chats that are copied: to files and back, to the clipboard, to another chat."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.app.screens.stage import REPLIES, Stage, staged


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


async def _import(stage: Stage, name: str) -> None:
    stage.deck.action_run("import-chats")
    await stage.settle()
    await stage.press(*name, "enter")
    await stage.turn()


async def test_a_chat_is_exported_with_its_branches_and_imported(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await stage.send("one")
        await stage.finish()
        await stage.press("ctrl+r")
        await stage.finish()
        stage.deck.action_run("export-chat-as-json")
        await stage.turn()
        (path,) = tmp_path.glob("one-*.json")
        assert stage.toasts == [f"Written to {path}"]
        path.rename("a.json")
        await _import(stage, "a.json")
        assert stage.toasts[-1] == "Imported 1 chat; f3 finds them."
        one, other = stage.store.conversations()
        assert one.title == other.title
        assert len(stage.store.messages(other.id)) == len(stage.store.messages(one.id)) == 3


async def test_all_chats_go_into_one_file(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        stage.deck.action_run("export-all-chats")
        await stage.turn()
        assert stage.toasts == ["This chat has no message to copy yet."]
        for text in ("one", "two"):
            await stage.press("ctrl+n")
            await stage.send(text)
            await stage.finish()
        stage.deck.action_run("export-all-chats")
        await stage.turn()
        (path,) = tmp_path.glob("chats-*.json")
        path.rename("a.json")
        await _import(stage, "a.json")
        titles = [chat.title for chat in stage.store.conversations()]
        assert sorted(titles) == ["one", "one", "two", "two"]


async def test_a_file_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "b.json").write_bytes(b"\xff")
    async with staged(tmp_path, REPLIES) as stage:
        await _import(stage, "a.json")
        assert (
            "a.json: it is not a file of chats: it is not JSON written by `tui export`"
            in stage.toasts[-1]
        )
        await _import(stage, "b.json")
        assert "b.json: it is not a file of chats: it is not UTF-8 text" in stage.toasts[-1]
        await _import(stage, "c.json")
        assert stage.toasts[-1] == "c.json is not a file; chats are imported from JSON."
        await _import(stage, "~nobody-of-that-name/c.json")
        assert (
            stage.toasts[-1]
            == "~nobody-of-that-name/c.json is not a file; chats are imported from JSON."
        )


async def test_a_copy_has_all_that_was_said_and_goes_its_own_way(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await stage.send("one")
        await stage.finish()
        stage.deck.action_run("duplicate-chat")
        await stage.turn()
        assert stage.sessions.current.title == "one (copy)"
        assert "The first reply." in stage.transcript
        await stage.send("two")
        await stage.finish()
        assert [len(s.chat.messages) for s in stage.sessions.sessions] == [2, 4]


async def test_a_chat_is_copied_and_a_large_one_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await stage.send("one")
        await stage.finish()
        stage.deck.action_run("copy-chat")
        await stage.turn()
        assert stage.app.clipboard.startswith("# one\n")
        assert "The first reply." in stage.app.clipboard
        assert stage.toasts[-1].startswith("Copied the chat, ")
        monkeypatch.setattr("app.screens.deck.files.MAX_CLIPBOARD", 10)
        stage.deck.action_run("copy-chat")
        await stage.turn()
        assert "bytes; many terminals take 10. Export writes a file." in stage.toasts[-1]
