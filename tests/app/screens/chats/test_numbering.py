from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from app.screens.chats.numbering import KEPT, Numbering
from app.store.conversation import Conversation
from engine.api.origin import Origin
from engine.api.snapshot import RequestView
from tests.app.screens.stage import Stage, staged
from tests.widgets.samples import view
from widgets.chat_number import ChatNumber
from widgets.panels.log_line import Subject


def asked(ordinal: int, conversation: str = "") -> RequestView:
    return view(ordinal, origin=Origin(conversation=conversation, title="asked"))


def own(key: str, number: int, title: str = "") -> Conversation:
    return Conversation(id=key, number=number, title=title)


def names(
    numbering: Numbering, requests: Sequence[RequestView], *chats: Conversation
) -> dict[int, str]:
    numbering.update(requests, chats)
    return {ordinal: str(name) for ordinal, name in numbering.names.items()}


def test_a_chat_has_its_own_number_whatever_its_place() -> None:
    numbering = Numbering(lambda _: None)
    requests = [asked(1, "c"), asked(2, "b"), asked(3, "c")]
    chats = [own("a", 1, "Alps"), own("b", 2, "Bern"), own("c", 3, "Chur")]
    assert names(numbering, requests, *chats) == {1: "3 Chur", 2: "2 Bern", 3: "3 Chur"}
    # Chat 1 is closed: nothing is renumbered. Neither is one that is closed and still runs.
    assert names(numbering, requests, *chats[1:]) == {1: "3 Chur", 2: "2 Bern", 3: "3 Chur"}
    assert names(numbering, requests, chats[2]) == {1: "3 Chur", 2: "2 asked", 3: "3 Chur"}


def test_a_number_that_went_to_another_chat_is_that_ones_only() -> None:
    numbering = Numbering(lambda _: None)
    names(numbering, [asked(1, "a")], own("a", 1, "Alps"))
    both = names(numbering, [asked(1, "a"), asked(2, "b")], own("b", 1, "Bern"))
    assert both == {1: "A asked", 2: "1 Bern"}


def test_what_others_hold_has_letters_and_keeps_them() -> None:
    numbering = Numbering(lambda _: None)
    requests = [asked(1, "x"), asked(2, "a"), asked(3)]
    mine = own("a", 1, "Alps")
    assert names(numbering, requests, mine) == {1: "A asked", 2: "1 Alps", 3: "B asked"}
    # x is not shown for a while.
    assert names(numbering, [asked(3), asked(4, "y")], mine) == {3: "B asked", 4: "C asked"}
    assert names(numbering, [asked(5, "x")], mine) == {5: "A asked"}
    watched = Conversation(id="x", source="mqtt", user="bob", title="Ulm")
    assert names(numbering, [asked(5, "x")], mine, watched) == {5: "A @bob Ulm"}
    assert numbering.number_of(watched) == ChatNumber(1, theirs=True)


def test_numbers_of_others_come_again_only_after_many() -> None:
    numbering = Numbering(lambda _: None)
    names(numbering, [asked(1, "x")])
    for n in range(2, KEPT + 1):
        names(numbering, [asked(n, f"y{n}")])
    assert names(numbering, [asked(KEPT + 1, "new")]) == {KEPT + 1: "AAA asked"}
    assert names(numbering, [asked(KEPT + 2, "x")]) == {KEPT + 2: "A asked"}


def test_a_request_is_named_after_it_is_gone() -> None:
    numbering = Numbering(lambda _: None)
    names(numbering, [asked(7, "a"), asked(8)], own("a", 4, "Alps"))
    names(numbering, [])
    assert [numbering.subject(r) for r in ("req-7", "req-8", "?")] == [
        Subject("4 Alps", "a"),
        Subject("A asked"),
        Subject("request ?"),
    ]
    names(numbering, [], own("a", 4, "Alps"))
    assert numbering.subject("refused at once", "a") == Subject("4 Alps", "a")


def test_a_request_is_named_before_the_figures_tell_of_it() -> None:
    """A snapshot may be older than the steps that the log tells of."""
    theirs = Conversation(id="x", source="mqtt", user="bob", title="Ulm")
    numbering = Numbering({"req-2": theirs, "req-9": own("a", 4, "Alps")}.get)
    names(numbering, [asked(1)])
    assert numbering.subject("req-9") == Subject("4 Alps", "a")
    assert numbering.subject("req-2") == Subject("B @bob Ulm", "x")
    assert names(numbering, [asked(1), asked(2, "x")]) == {1: "A asked", 2: "B asked"}
    assert numbering.subject("req-3") == Subject("request req-3")


async def three_chats(stage: Stage) -> None:
    for text in ("one", "two", "three"):
        await stage.press("ctrl+n")
        await stage.send(text)
        await stage.finish()


async def test_tab_row_and_map_agree_after_a_restart(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await three_chats(stage)
    async with staged(tmp_path, lambda _: "word " * 400, size=(160, 48)) as stage:
        await stage.press("alt+3")
        await stage.send("again")
        await stage.turn(3)
        assert stage.sessions.sessions.index(stage.sessions.current) == 2
        table = stage.deck.panels.table
        assert table.current is not None
        assert str(table.current.name) == "3 three"
        await stage.press("f2", "3")
        assert "used by 3 three" in await stage.screen()


async def test_closing_a_chat_renumbers_no_other(tmp_path: Path) -> None:
    """Review, 11."""
    async with staged(tmp_path) as stage:
        await three_chats(stage)
        await stage.press("alt+1", "ctrl+w")
        assert [str(stage.sessions.number_of(s)) for s in stage.sessions.sessions] == ["2", "3"]
        tabs = (await stage.screen()).splitlines()[1]
        assert "2 ○ two" in tabs
        assert "3 ○ three" in tabs
        await stage.press("alt+3")
        assert stage.sessions.current.title == "three"
        await stage.press("alt+1")
        assert stage.toasts[-1] == "No open chat has the number 1."
        assert stage.sessions.current.title == "three"
    async with staged(tmp_path) as stage:
        assert [str(stage.sessions.number_of(s)) for s in stage.sessions.sessions] == ["2", "3"]
