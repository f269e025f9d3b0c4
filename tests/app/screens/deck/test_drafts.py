"""Drafts: attachments, the room left in the context, and their storage."""

from __future__ import annotations

import os
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import pytest

from app.conversations.question import MAX_BYTES
from app.screens.deck.drafts import MOST_PATHS, completed_paths, mentions
from app.screens.dialogs.dialog import AskText
from app.store.conversation import Attachment
from app.store.database import StoreError
from app.store.drafts import Draft
from tests.app.screens.stage import Stage, staged
from tests.widgets.hosting import paste
from widgets.chat.prompt import PASTED_CHARACTERS, PASTED_LINES

LONG = "word " * 1000


async def head(stage: Stage) -> str:
    await stage.turn()
    return next(row for row in (await stage.screen()).splitlines() if "ctx" in row)


async def test_a_message_that_is_too_long_is_refused_before_there_is_a_turn(tmp_path: Path) -> None:
    """Finding 12."""
    async with staged(tmp_path) as stage:
        await stage.send("word " * 30_000)
        (sentence,) = stage.toasts
        assert sentence == ("This message is 30,000 tokens; the context holds 1,024: shorten it.")
        assert stage.engine.submissions == []
        assert stage.sessions.current.chat.messages == ()
        assert len(stage.prompt) == 150_000
        shown = await head(stage)
        assert "ctx 0 + 30,000 of 1,024 · too long" in shown
        assert "full" not in shown


async def test_what_is_taken_counts_and_the_ways_out_are_told(tmp_path: Path) -> None:
    async with staged(tmp_path, {"one": "The first reply."}) as stage:
        await stage.send("one")
        await stage.finish()
        used = int((await head(stage)).split("ctx ")[1].split("/")[0])
        stage.deck.chat.composer.attach(Attachment("notes.txt", "word " * 1015))
        await stage.send("Sum it up.")
        tokens = 1015 + 3 + 3  # the name and two fences
        assert stage.toasts == [
            f"This message is {tokens:,} tokens; the context holds 1,024, and {used} of them are"
            " taken: shorten it, take an attachment away (Backspace in an empty prompt) or begin a"
            " new chat (^n)."
        ]
        assert len(stage.engine.submissions) == 1


async def test_an_edit_takes_the_room_of_the_message_that_it_replaces(tmp_path: Path) -> None:
    async with staged(tmp_path, lambda _: "ok") as stage:
        await stage.send("word " * 900)
        await stage.finish()
        await stage.send("word " * 900)
        assert "900 tokens" in stage.toasts[-1]
        stage.deck.chat.prompt.area.load_text("")
        stage.deck.action_run("chat.edit")
        await stage.send("word " * 901)
        assert len(stage.engine.submissions) == 2


async def test_it_is_sent_when_its_tokens_are_counted(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        tokens: Future[list[int]] = Future()
        stage.engine.tokenize = lambda *_, **__: tokens  # type: ignore[method-assign]
        await stage.send(LONG)
        assert stage.engine.submissions == []
        assert f"ctx 0 + ~{len(LONG) // 4:,} of" in await head(stage)
        tokens.set_result([0] * 900)
        await stage.turn()
        assert [s.messages[0].content for s in stage.engine.submissions] == [LONG]


async def test_a_count_that_is_soon_there_sends_it_all_the_same(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        counts: list[Future[list[int]]] = []

        def tokenize(text: str, **_: object) -> Future[list[int]]:
            counts.append(Future())
            return counts[-1]

        stage.engine.tokenize = tokenize  # type: ignore[method-assign]
        stage.deck.chat.composer.attach(Attachment("notes.txt", "word " * 900))
        await stage.turn()
        counts[0].set_result([0] * 900)
        # What is short is counted when it may not fit. The count is there before the screen is
        # next brought up to date.
        stage.deck.chat.prompt.area.load_text("€" * 100)
        await stage.turn()
        stage.deck.action_run("prompt.send")
        counts[-1].set_result([0] * 100)
        await stage.turn()
        assert len(counts) == 2
        assert len(stage.engine.submissions) == 1


async def test_attachments_alone_are_refused_in_words(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        stage.deck.chat.composer.attach(Attachment("notes.txt", "word " * 30_000))
        await stage.turn()
        await stage.press("enter")
        (sentence,) = stage.toasts
        assert sentence.startswith("This message is 30,003 tokens")


async def test_what_is_changed_while_it_is_counted_is_not_sent(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        tokens: Future[list[int]] = Future()
        stage.engine.tokenize = lambda *_, **__: tokens  # type: ignore[method-assign]
        await stage.send(LONG)
        await stage.press("x")
        tokens.set_result([0] * 900)
        await stage.turn()
        assert stage.engine.submissions == []


async def test_a_short_paste_is_text_and_a_long_one_is_attached(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await paste(stage.app, "x" * PASTED_CHARACTERS)
        assert len(stage.prompt) == PASTED_CHARACTERS
        stage.deck.chat.prompt.area.load_text("")
        await paste(stage.app, "line\n" * (PASTED_LINES + 1))
        await paste(stage.app, "y" * (PASTED_CHARACTERS + 1))
        assert stage.prompt == ""
        screen = await stage.screen()
        assert "paste 1 · 205 B · 45 tokens ✕" in screen
        assert "paste 2 · 2 KiB · 5 tokens ✕" in screen
        await stage.send("What is this?")
        (submission,) = stage.engine.submissions
        (told,) = submission.messages
        assert told.content.startswith("paste 1:\n```\nline\n")
        assert told.content.endswith("yyy\n```\n\nWhat is this?")
        await stage.finish()
        message = stage.store.branch(stage.sessions.current.chat.conversation.leaf or "")[0]
        assert [one.name for one in message.attachments] == ["paste 1", "paste 2"]
        assert message.content == "What is this?"
        assert "paste 1 ·" not in "\n".join((await stage.screen()).splitlines()[-6:])


async def test_attachments_are_taken_away_by_backspace_and_by_a_click(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        for name in "abc":
            stage.deck.chat.composer.attach(Attachment(name, "text"))
        await stage.turn()
        await stage.press("x", "backspace")
        assert len(stage.deck.chat.composer.attachments) == 3
        await stage.press("backspace")
        assert [one.name for one in stage.deck.chat.composer.attachments] == ["a", "b"]
        await stage.screen()
        await stage.pilot.click(stage.deck.chat.prompt.chips, offset=(4, 0))
        assert [one.name for one in stage.deck.chat.composer.attachments] == ["b"]
        stage.deck.action_run("remove-attachment")
        stage.deck.action_run("remove-attachment")
        await stage.turn()
        assert stage.toasts == ["Nothing is attached to this message."]


async def test_a_file_is_attached_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("\ufeffone\ntwo\n", encoding="utf-8")
    async with staged(tmp_path) as stage:
        stage.deck.action_run("attach-file")
        await stage.settle()
        assert isinstance(stage.app.screen, AskText)
        await stage.press(*str(tmp_path / "notes.txt"), "enter")
        assert stage.deck.chat.composer.attachments == (Attachment("notes.txt", "one\ntwo\n"),)
        await stage.press("enter")
        assert stage.engine.submissions[0].messages[0].content == "notes.txt:\n```\none\ntwo\n```"


NO_TEXT: list[tuple[bytes | None, str]] = [
    (b"\x89PNG\r\n", "{path} (6 bytes) is not text: byte 0 is not of UTF-8"),
    (b"a\0b", "{path} (3 bytes) is not text: byte 1 is not of UTF-8"),
    (b" \n", "{path} is empty; only text files can be attached"),
    (None, "{path} is not a file; a text file can be attached"),
    (b"x" * (MAX_BYTES + 1), "{path} has 4,194,305 bytes; at most 4,194,304 can be attached"),
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder, which is also the home folder, with files."""
    here = tmp_path / "here"
    monkeypatch.setenv("HOME", str(here))
    (here / "notes").mkdir(parents=True)
    (here / "My Texts").mkdir()
    names = ("notes/one.md", "notes/two.md", "note.txt", "Note.md", ".hidden", "od\nd")
    for name in (*names, "My Texts/a b.txt"):
        (here / name).write_text(f"text of {name}")
    monkeypatch.chdir(here)
    return here


@pytest.mark.parametrize(
    ("begun", "completed"),
    [
        ("no", ["note.txt", "notes/", "Note.md"]),
        ("No", ["Note.md"]),
        ("my", ["My Texts/"]),
        ("notes/", ["notes/one.md", "notes/two.md"]),
        ("notes/t", ["notes/two.md"]),
        ("My Texts/", ["My Texts/a b.txt"]),
        ("~", ["~/"]),
        ("~/note.", ["~/note.txt", "~/Note.md"]),
        ("./", ["./My Texts/", "./Note.md", "./note.txt", "./notes/"]),
        ("../he", ["../here/"]),
        (".h", [".hidden"]),
        ("od", []),
        ("none/", []),
        ("note.txt/", []),
        ("\0/", []),
    ],
)
def test_a_path_is_completed(here: Path, begun: str, completed: list[str]) -> None:
    assert completed_paths(begun) == completed
    if not begun.startswith("~"):
        assert completed_paths(f"{here}/{begun}") == [f"{here}/{name}" for name in completed]


def test_a_folder_of_thousands_is_listed_once(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3000):
        (here / f"file{number:04}").touch()
    listed = Mock(wraps=os.scandir)
    monkeypatch.setattr("os.scandir", listed)
    for begun in ("f", "fi", "file", "file2"):
        assert len(completed_paths(begun)) == MOST_PATHS
    assert completed_paths("file2999") == ["file2999"]
    assert listed.call_count == 1


@pytest.mark.parametrize(
    ("before", "offered"),
    [
        ("@no", [("note.txt ", "note.txt"), ("@notes/", ""), ("Note.md ", "Note.md")]),
        ("see @notes/o", [("one.md ", "notes/one.md")]),
        ("see @My Texts/a b", [("a b.txt ", "My Texts/a b.txt")]),
        ("see @.h", [(".hidden ", ".hidden")]),
        ("a@no", []),
        ("see @note.txt and", []),
        ("@no @nobody", []),
        ("no", []),
        ("!no", []),
    ],
)
def test_a_path_after_an_at_sign_is_offered(
    here: Path, before: str, offered: list[tuple[str, str]]
) -> None:
    found = mentions(before)
    assert [(one.text, one.attaches) for one in found] == offered
    assert {one.start for one in found} <= {before.rfind("@")}


@pytest.mark.parametrize("key", ["enter", "tab"])
async def test_a_file_is_attached_where_it_is_mentioned(here: Path, key: str) -> None:
    async with staged(here.parent, lambda _: "ok") as stage:
        area = stage.deck.chat.prompt.area
        await paste(stage.app, "sum up @")
        assert area.offer() is not None
        await stage.press(*"note", "down", key)
        assert stage.prompt == "sum up @notes/"
        await stage.press("down", key)
        assert stage.prompt == "sum up two.md "
        assert stage.deck.chat.composer.attachments == (
            Attachment("two.md", "text of notes/two.md"),
        )
        assert stage.engine.submissions == []
        await paste(stage.app, "in !words")
        await stage.press("enter")
        prompt = stage.engine.submissions[-1].messages[0].content
        assert prompt == "two.md:\n```\ntext of notes/two.md\n```\n\nsum up two.md in !words"


async def test_a_click_attaches_and_a_file_that_is_refused_stays_in_the_text(here: Path) -> None:
    (here / "photo.png").write_bytes(b"\x89PNG")
    async with staged(here.parent) as stage:
        area = stage.deck.chat.prompt.area
        await paste(stage.app, "@note.t")
        await stage.settle()
        await stage.pilot.click("Completions")
        assert (stage.prompt, len(stage.deck.chat.composer.attachments)) == ("note.txt ", 1)
        await paste(stage.app, "and @photo")
        await stage.press("tab")
        assert stage.prompt == "note.txt and @photo"
        assert len(stage.deck.chat.composer.attachments) == 1
        (sentence,) = stage.toasts
        assert sentence.startswith("photo.png (4 bytes) is not text: byte 0")
        assert area.offer() is None


async def test_mentions_follow_the_cursor_until_escape_closes_their_list(here: Path) -> None:
    async with staged(here.parent) as stage:
        offered = stage.deck.chat.prompt.completions
        await paste(stage.app, "@note and")
        assert offered.current is None
        await stage.press(*["left"] * 4)
        assert offered.current is not None
        await stage.press("left")
        assert offered.current is not None
        await stage.press("escape", "left")
        assert offered.current is None
        await stage.press("x")
        assert offered.current is None, "no path begins so"
        await stage.press("backspace")
        assert offered.current is not None


async def test_what_is_no_text_file_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "file"
    async with staged(tmp_path) as stage:
        stage.deck.chat.prompt.area.load_text("Sum it up.")
        for content, sentence in NO_TEXT:
            path.unlink(missing_ok=True)
            if content is not None:
                path.write_bytes(content)
            assert not stage.deck.drafts.attach(str(path)), sentence
            await stage.turn()
            assert stage.toasts[-1].startswith(sentence.format(path=path))
            assert stage.prompt == "Sum it up.", sentence
            assert stage.deck.chat.composer.attachments == (), sentence
        assert not stage.deck.drafts.attach("~nobody-of-that-name/file")
        await stage.turn()
        assert stage.toasts[-1].startswith("~nobody-of-that-name/file is not a file")


async def test_a_draft_is_there_again_with_its_attachments(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await stage.press(*"half a th")
        stage.deck.chat.composer.attach(Attachment("notes.txt", "one"))
        stage.deck.drafts.store()
        key = stage.sessions.current.key
        assert stage.store.drafts.of(key).text == "half a th"  # so a kill -9 does not lose it
        await stage.press(*"ought")
    async with staged(tmp_path) as stage:
        assert stage.prompt == "half a thought"
        assert stage.deck.chat.composer.attachments == (Attachment("notes.txt", "one"),)
        await stage.press("enter")
        assert stage.store.drafts.of(stage.sessions.current.key) == Draft()
    async with staged(tmp_path) as stage:
        assert stage.prompt == ""


async def test_a_draft_that_was_emptied_leaves_nothing_behind(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await stage.press(*"hi")
        stage.deck.drafts.store()
        assert len(stage.store.conversations()) == 1
        await stage.press("backspace", "backspace")
        stage.deck.drafts.store()
        assert stage.store.conversations() == []


async def test_that_drafts_are_not_kept_is_told_once_until_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with staged(tmp_path) as stage:

        async def write(text: str) -> None:
            await stage.press(*text)
            stage.deck.drafts.store()
            await stage.turn()

        fails = Mock(side_effect=StoreError("locked"))
        for times in (1, 2):
            with monkeypatch.context() as broken:
                broken.setattr(stage.store.drafts, "save", fails)
                await write("a")
                await write("b")
            stage.deck.drafts.store()
            assert stage.toasts == ["This draft is not saved: locked"] * times
            assert stage.store.drafts.of(stage.sessions.current.key).text == "ab" * times


async def test_each_chat_keeps_its_own_draft(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await stage.press(*"one", "ctrl+n")
        assert stage.prompt == ""
        await stage.press(*"two", "alt+1")
        assert stage.prompt == "one"
        await stage.press("alt+2")
        assert stage.prompt == "two"
    async with staged(tmp_path) as stage:
        texts = {stage.store.drafts.of(s.key).text for s in stage.sessions.sessions}
        assert texts == {"one", "two"}


async def test_an_edit_goes_on_where_it_was_left(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await stage.send("one")
        await stage.finish()
        await stage.press(*"draft")
        stage.deck.action_run("chat.edit")
        await stage.press(*" more", "ctrl+n")
        assert stage.prompt == ""
        await stage.press("alt+1")
        assert stage.prompt == "one more"
        await stage.press("escape")
        assert stage.prompt == "draft"
        stage.deck.action_run("chat.edit")
        await stage.press(*" two")
    async with staged(tmp_path) as stage:
        await stage.press("alt+1")
        assert stage.prompt == "one two"
        await stage.press("enter")
        assert stage.sessions.current.chat.messages[0].content == "one two"
        assert stage.prompt == "draft"
    async with staged(tmp_path) as stage:
        assert stage.prompt == "draft"


async def test_a_chat_that_is_closed_keeps_its_draft_and_is_not_opened_again(
    tmp_path: Path,
) -> None:
    async with staged(tmp_path) as stage:
        await stage.press(*"half a thought")
        key = stage.sessions.current.key
        stage.deck.action_run("chat.close")
        assert stage.prompt == ""
        assert stage.store.drafts.of(key).text == "half a thought"
    async with staged(tmp_path) as stage:
        assert stage.prompt == ""
        stage.deck.chats.open(key)
        assert stage.prompt == "half a thought"


@pytest.fixture
def editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's editor: a script of the shell, which the test writes; `$2` is the file."""
    monkeypatch.setattr("app.screens.tui.Tui.suspend", nullcontext)
    monkeypatch.delenv("EDITOR", raising=False)
    path = tmp_path / "an editor"
    path.touch(mode=0o700)
    monkeypatch.setenv("VISUAL", f"'{path}' --wait")
    return path


async def edit(stage: Stage, editor: Path, script: str) -> None:
    """Open the draft in the editor, and wait until that has ended."""
    editor.write_text(f"#!/bin/sh\n{script}\n")
    await stage.press("alt+e")
    await stage.turn()


@pytest.mark.parametrize(
    ("draft", "script", "edited"),
    [
        ("one", 'test "$1" = --wait && echo " two" >> "$2"', "one two"),
        ("one\n", 'echo two >> "$2"', "one\ntwo\n"),
        ("", r"""printf 'é\033[2J\n//x\n' > "$2" """, "é[2J\n//x"),
        ("one", 'printf "" > "$2"', ""),
        ("one", "true", "one"),
    ],
)
async def test_the_editor_has_the_draft(
    tmp_path: Path, editor: Path, draft: str, script: str, edited: str
) -> None:
    async with staged(tmp_path) as stage:
        stage.deck.chat.prompt.area.load_text(draft)
        await edit(stage, editor, script)
        assert stage.prompt == edited
        assert stage.toasts == []
        assert stage.deck.chat.prompt.area.has_focus


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ('echo two >> "$2"; exit 3', "an editor ended with code 3"),
        ("kill -9 $$", "an editor was ended by SIGKILL"),
        ('printf "a\\377" > "$2"', "The editor saved a file that is not UTF-8 (byte 1)"),
        ('rm "$2"', "[Errno 2] No such file or directory: "),
    ],
)
async def test_the_draft_survives_the_failure_of_the_editor(
    tmp_path: Path, editor: Path, script: str, why: str
) -> None:
    async with staged(tmp_path) as stage:
        stage.deck.chat.prompt.area.load_text("one")
        await edit(stage, editor, script)
        assert stage.prompt == "one"
        (sentence,) = stage.toasts
        assert sentence.startswith(why)
        assert sentence.endswith("; the draft is unchanged.")


@pytest.mark.parametrize(
    ("visual", "fallback", "sentence"),
    [
        (" ", "", "No editor is set; VISUAL or EDITOR names one, as EDITOR=nano does."),
        ("", "no-such -w", "EDITOR is 'no-such -w', but there is no program no-such."),
        ("'vi", "vi", 'VISUAL is "\'vi", which has a quote without an end.'),
    ],
)
async def test_an_editor_that_is_missing_gets_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visual: str, fallback: str, sentence: str
) -> None:
    monkeypatch.setenv("VISUAL", visual)
    monkeypatch.setenv("EDITOR", fallback)
    async with staged(tmp_path) as stage:
        await stage.press("alt+e")
        await stage.turn()
        assert stage.toasts == [sentence]


async def test_a_terminal_that_cannot_be_left_gets_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VISUAL", "true")
    async with staged(tmp_path) as stage:  # its driver has no terminal
        await stage.press("alt+e")
        await stage.turn()
        assert stage.toasts == ["An editor cannot have this terminal; the draft is unchanged."]
