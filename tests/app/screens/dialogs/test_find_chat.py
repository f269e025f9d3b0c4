"""The dialog that finds chats: what it lists, shows and does."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from textual.widgets import Input, OptionList, Static

from app.screens.dialogs.find_chat import FindChat, FindSent
from app.screens.keys.help import HelpScreen
from app.store.conversation import Conversation, Message
from app.store.database import StoreError
from app.store.query import Query
from app.store.search import Found, Search
from app.store.store import Store
from engine.api.lifecycle import FinishReason
from tests.app.screens.stage import Stage, staged
from tests.support.linked import until


def keep(folder: Path, *chats: tuple[str, ...]) -> None:
    """Chats in the store, each a title and its messages by turns."""
    store = Store(folder / "batchdeck.db")
    for title, *contents in chats:
        chat = Conversation(title=title, is_open=False)
        store.save_conversation(chat)
        for index, content in enumerate(contents):
            message = Message(
                conversation_id=chat.id,
                parent_id=chat.leaf,
                role=("user", "assistant")[index % 2],
                content=content,
                model=("", "some-model")[index % 2],
                finish_reason=(None, FinishReason.STOP)[index % 2],
            )
            store.save_message(message)
            chat.leaf = message.id
        store.save_conversation(chat)
    store.close()


async def look(stage: Stage, text: str) -> list[str]:
    """Type into the dialog, opening it if need be; returns the lines of what it found."""
    if not isinstance(stage.app.screen, FindChat):
        await stage.press("f3")
    stage.app.screen.query_one(Input).value = text
    await stage.settle()
    await stage.turn()
    options = stage.app.screen.query_one(OptionList)
    return [str(option.prompt) for option in options.options]


def preview(stage: Stage) -> str:
    return str(stage.app.screen.query_one("#hit", Static).content)


@pytest.mark.parametrize(("width", "around"), [(80, "字"), (120, "words "), (80, "\x07")])
async def test_an_excerpt_has_one_line(tmp_path: Path, width: int, around: str) -> None:
    chats = [(f"chat {n}", f"{around * 100} needle {around * 100}") for n in range(12)]
    keep(tmp_path, *chats)
    async with staged(tmp_path, size=(width, 24)) as stage:
        assert len(await look(stage, "needle")) == len(chats)
        options = stage.app.screen.query_one(OptionList)
        # A list is measured when it is drawn.
        await until(lambda: options.virtual_size.height)
        assert options.virtual_size.height == 2 * len(chats)
        screen = await stage.screen()
        assert sum("needle" in row for row in screen.splitlines()) >= 4


async def test_words_rank_and_the_hit_is_shown(tmp_path: Path) -> None:
    keep(
        tmp_path,
        *((f"chat {n} about topic {n % 17}", "Hi", "Hello") for n in range(30)),
        ("Holidays", "What of topics?", "The fifth is the sea.", "And 5?", "That is topic 5."),
    )
    async with staged(tmp_path) as stage:
        found = await look(stage, "topic 5")
        assert "chat 5 about topic 5" in found[0] + found[1]
        assert "chat 22 about topic 5" in found[0] + found[1]
        assert all("some-model" in line for line in found)
        (line,) = await look(stage, "fifth sea")
        assert line.endswith("\n    The fifth is the sea.")
        assert "some-model, " in preview(stage)
        assert "hit 1 of 1\nThe fifth is the sea." in preview(stage)
        assert "1 chat" in await stage.screen()


async def test_where_nothing_fits_it_says_so(tmp_path: Path) -> None:
    keep(tmp_path, ("Holidays", "Hi", "Hello"))
    async with staged(tmp_path) as stage:
        assert await look(stage, "xylophone") == []
        assert "No chat has all of these words." in await stage.screen()
        await stage.press("enter", "f8", "f7", "tab")
        assert isinstance(stage.app.screen, FindChat)
        assert await look(stage, "model:none") == []
        assert "No chat matches." in await stage.screen()
        assert await look(stage, "after:soon") == []
        assert "after is 'soon'; it must be a day such as 2026-11-01." in await stage.screen()
        assert await look(stage, "??") == []
        assert "'??' has no word to look for." in await stage.screen()


async def test_that_there_are_more_chats_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.screens.dialogs.find_chat.MOST", 2)
    keep(tmp_path, *((f"Trip {n}", "Hi", "Hello") for n in range(3)))
    async with staged(tmp_path, size=(120, 24)) as stage:
        assert len(await look(stage, "")) == 2
        assert "the first 2 chats; words narrow it" in await stage.screen()
        assert len(await look(stage, "hello")) == 2
        assert "the first 2 chats; more words narrow it" in await stage.screen()
        assert len(await look(stage, "trip 1")) == 1
        assert "the first" not in await stage.screen()


async def test_enter_opens_at_the_hit(tmp_path: Path) -> None:
    lines = [f"line {n} of many" for n in range(60)]
    keep(tmp_path, ("Long", *lines[:20], "Here is the needle.", *lines[20:]))
    async with staged(tmp_path, size=(80, 24)) as stage:
        await look(stage, "needle")
        await stage.press("enter")
        await stage.turn()
        assert stage.sessions.current.title == "Long"
        assert "Here is the needle." in await stage.screen()


async def test_a_chat_that_the_title_alone_finds_opens_as_it_was_left(tmp_path: Path) -> None:
    keep(tmp_path, ("Otters", *(f"line {n} of many" for n in range(60)), "The end."))
    async with staged(tmp_path, size=(80, 24)) as stage:
        (line,) = await look(stage, "otters")
        assert line.endswith("\n    in the title")
        assert not stage.app.screen.query_one("#hit").display
        await stage.press("tab", "enter")
        await stage.turn()
        assert stage.sessions.current.title == "Otters"
        assert "The end." in await stage.screen()


async def test_enter_opens_a_hit_on_another_branch(tmp_path: Path) -> None:
    said = iter(("Of otters.", "Of badgers."))
    async with staged(tmp_path, lambda _: next(said)) as stage:
        await stage.send("one")
        await stage.finish()
        await stage.press("ctrl+r")
        await stage.finish()
        assert "Of badgers." in stage.transcript
        await look(stage, "otters")
        await stage.press("enter")
        await stage.turn()
        assert "Of otters." in stage.transcript
        assert "1/2" in stage.transcript


class Gate:
    """Holds searches until they are let through, and notes what they look for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.searched: list[tuple[str, ...]] = []
        self.open = threading.Semaphore(0)
        find = Search.find

        def held(search: Search, query: Query, most: int) -> list[Found]:
            self.open.acquire(timeout=5)
            self.searched.append(query.phrases)
            return find(search, query, most)

        monkeypatch.setattr(Search, "find", held)


async def test_enter_waits_for_what_is_found_and_opens_at_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f"line {n} of many" for n in range(60)]
    keep(tmp_path, ("Long", *lines[:20], "Here is the needle.", *lines[20:]), ("Two", "Hi", "You"))
    gate = Gate(monkeypatch)
    async with staged(tmp_path, size=(80, 24)) as stage:
        gate.open.release()
        await look(stage, "")
        dialog = stage.app.screen
        assert isinstance(dialog, FindChat)
        dialog.query_one(Input).value = "needle"
        await stage.settle()
        await stage.press("enter")
        assert stage.app.screen is dialog
        gate.open.release()
        await stage.turn()
        assert stage.sessions.current.title == "Long"
        assert "Here is the needle." in await stage.screen()


async def test_what_is_typed_during_a_search_is_searched_after_it_and_no_more_than_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(tmp_path, ("One", "Hi", "Hello"), ("Two", "Hi", "Hello"))
    gate = Gate(monkeypatch)
    async with staged(tmp_path) as stage:
        await stage.press("f3")
        for typed in ("t", "tw", "two"):
            stage.app.screen.query_one(Input).value = typed
            await stage.settle()
        gate.open.release(2)
        assert len(await look(stage, "two")) == 1
        assert gate.searched == [(), ("two",)]


async def test_tab_goes_through_the_hits_of_a_chat(tmp_path: Path) -> None:
    keep(tmp_path, ("Sea", "the sea is blue", "yes", "the sea is wet", "yes"))
    async with staged(tmp_path) as stage:
        await look(stage, "sea is")
        first = preview(stage)
        assert "hit 1 of 4" in first or "hit 1 of 2" in first
        await stage.press("tab")
        assert "hit 2 of" in preview(stage)
        await stage.press("shift+tab")
        assert preview(stage) == first


async def test_chats_are_deleted_archived_renamed_from_the_list(tmp_path: Path) -> None:
    keep(tmp_path, ("One", "Hi", "Hello"), ("Two", "Hi", "Hello"), ("Three", "Hi", "Hello"))
    async with staged(tmp_path) as stage:
        assert len(await look(stage, "")) == 3
        await stage.press("down", "f8")
        await stage.turn()
        assert stage.toasts == ["“Two” is deleted. f12 undoes."]
        assert [c.title for c in stage.store.conversations()] == ["One", "Three"]
        await stage.press("f12")
        await stage.turn()
        assert len(await look(stage, "two")) == 1
        await stage.press("f7")
        await stage.turn()
        assert await look(stage, "two") == []
        (line,) = await look(stage, "two archived:yes")
        assert "put away" in line
        await stage.press("f7")
        await stage.turn()
        assert len(await look(stage, "two")) == 1
        await stage.press("f6")
        await stage.settle()
        await stage.press(*"Other", "enter")
        await stage.settle()
        assert len(await look(stage, "other")) == 1
        assert await look(stage, "two") == []


async def test_why_a_chat_cannot_be_changed_stays_above_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(tmp_path, ("One", "Hi", "Hello"))

    def fail(*_: object) -> None:
        raise StoreError("the disk is full")

    async with staged(tmp_path) as stage:
        await look(stage, "")
        monkeypatch.setattr(Store, "save_label", fail)
        await stage.press("f6")
        await stage.settle()
        await stage.press(*"Other", "enter")
        await stage.turn()
        assert "the disk is full" in await stage.screen()
        assert stage.toasts == []
        await look(stage, "one")
        await stage.press("f7")
        await stage.turn()
        assert "the disk is full" in await stage.screen()


async def test_what_is_found_after_it_was_closed_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    async with staged(tmp_path) as stage:
        await stage.press("f3", "enter")
        (search,) = stage.app.workers
        # At once: nothing is shown any more in widgets that are about to go.
        stage.app.screen.dismiss()
        assert search.is_cancelled
        gate.open.release()


async def test_what_is_found_under_another_dialog_stays_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(tmp_path, ("One", "Hi", "Hello"))
    gate = Gate(monkeypatch)
    async with staged(tmp_path) as stage:
        await stage.press("f3", "enter", "f1")
        gate.open.release()
        await stage.turn()
        assert isinstance(stage.app.screen, HelpScreen)
        await stage.press("f1")
        assert isinstance(stage.app.screen, FindChat)


async def test_its_keys_are_told_as_they_are_bound(tmp_path: Path) -> None:
    async with staged(tmp_path, keys={"find.next": "f19", "find.delete": "f20"}) as stage:
        await stage.press("f3")
        label = "Enter opens · f19 next hit · f6 rename alt+t pin f7 archive f20 delete f12 undo"
        assert label in await stage.screen()


async def sent(stage: Stage, text: str) -> list[str]:
    """Type into the dialog of sent messages, opening it if need be; returns its lines."""
    if not isinstance(stage.app.screen, FindSent):
        await stage.press("alt+r")
        await stage.turn()
    stage.app.screen.query_one(Input).value = text
    await stage.settle()
    options = stage.app.screen.query_one(OptionList)
    return [str(option.prompt) for option in options.options]


async def test_sent_messages_of_all_chats_are_found_newest_first(tmp_path: Path) -> None:
    keep(
        tmp_path,
        ("old", "Explain Kafka", "a reply of Kafka", "and the Café\nof the town"),
        ("new", "Explain paging", "ok", "Explain Kafka", "ok", "/etc/hosts?"),
    )
    async with staged(tmp_path) as stage:
        everything = ["/etc/hosts?", "Explain Kafka", "Explain paging", "and the Café of the town"]
        assert await sent(stage, "") == everything
        assert await sent(stage, "expl") == ["Explain Kafka", "Explain paging"]
        assert await sent(stage, "kaf EXPLAIN") == ["Explain Kafka"]
        assert await sent(stage, "plain") == [], "words match from their beginning"
        assert "No message has all of these words." in await stage.screen()
        assert await sent(stage, "cafe") == ["and the Café of the town"]
        assert preview(stage) == "and the Café\nof the town"


@pytest.mark.parametrize(("words", "put"), [("town", "and the town"), ("hosts", "//etc/hosts?")])
async def test_a_sent_message_is_put_into_the_prompt_and_undone(
    tmp_path: Path, words: str, put: str
) -> None:
    keep(tmp_path, ("old", "and the town", "ok", "/etc/hosts?"))
    async with staged(tmp_path) as stage:
        await stage.press(*"draft")
        await sent(stage, words)
        await stage.press("enter")
        assert stage.prompt == put
        assert stage.deck.chat.prompt.area.has_focus
        await stage.press("ctrl+underscore")
        assert stage.prompt == "draft"
        await sent(stage, words)
        await stage.press("escape")
        assert stage.prompt == "draft"
        assert stage.engine.submissions == []


async def test_history_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_store: Store, _most: int) -> list[str]:
        raise StoreError("the disk broke")

    monkeypatch.setattr(Store, "sent", fails)
    async with staged(tmp_path) as stage:
        assert await sent(stage, "") == []
        assert "the disk broke" in await stage.screen()
        await stage.press("enter")
        assert isinstance(stage.app.screen, FindSent)
