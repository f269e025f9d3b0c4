"""Keys between the prompt and the messages above it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.app.screens.stage import REPLIES, Stage, staged
from tests.widgets.hosting import burst, paste


async def talk(stage: Stage, *texts: str) -> None:
    for text in texts:
        await stage.send(text)
        await stage.finish()


@pytest.mark.parametrize("key", ["ctrl+up", "shift+tab"])
async def test_keys_lead_to_the_messages_and_back(tmp_path: Path, key: str) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await talk(stage, "one", "two")
        transcript, messages = stage.deck.chat.transcript, stage.sessions.current.chat.messages
        await stage.press(key)
        assert transcript.has_focus
        assert transcript.current == messages[-1].id
        await stage.press("up", "up")
        assert transcript.current == messages[1].id
        assert "▌  The first reply." in await stage.screen()
        await stage.press("escape")
        assert stage.deck.chat.prompt.area.has_focus
        assert transcript.current == ""
        assert "▌" not in await stage.screen()


async def test_escape_among_the_messages_stops_no_reply(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await stage.send("long")
        await stage.turn(2)
        await stage.press("ctrl+up", "escape")
        assert stage.sessions.current.chat.is_busy
        assert stage.deck.chat.prompt.area.has_focus


async def test_what_is_typed_among_the_messages_comes_to_the_prompt(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await talk(stage, "one")
        stage.deck.chat.prompt.load("so ", ())
        await stage.press("ctrl+up", "h", "e", "y")
        assert stage.prompt == "so hey"
        await stage.press("ctrl+up")
        await paste(stage.app, "a\nb ")
        assert stage.prompt == "so heya\nb "
        assert stage.deck.chat.transcript.current == ""


async def test_text_that_is_typed_faster_than_the_focus_moves_is_kept(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await talk(stage, "one")
        await stage.press("ctrl+up")
        await burst(stage.app, *"wyct", "space", *"xe")
        assert stage.prompt == "wyct xe"
        assert stage.app.clipboard == ""


async def test_the_key_that_unfolds_is_told_where_there_is_something_to_unfold(
    tmp_path: Path,
) -> None:
    async with staged(tmp_path, {"one": "<think>Hm.</think>Yes."}) as stage:
        await talk(stage, "one")
        await stage.press("ctrl+up")
        assert stage.deck.active_bindings["enter"].binding.description == "Unfold"
        await stage.press("up")
        assert "enter" not in stage.deck.active_bindings


async def test_the_palette_leads_to_the_messages(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await talk(stage, "one")
        await stage.press("f2")
        stage.deck.action_run("chat.read")
        assert "The first reply." in await stage.screen()
        assert stage.deck.chat.transcript.has_focus


async def test_thinking_is_folded_and_shown_on_demand(tmp_path: Path) -> None:
    replies = {"one": "<think>So it is four of them.</think>Four."}
    async with staged(tmp_path, replies) as stage:
        await stage.send("one")
        await stage.turn(3)
        assert "▸ thinking… 3 tokens · 40ms" in await stage.screen()
        assert "So it" not in stage.transcript
        await stage.finish()
        assert "▸ thought · 6 tokens · 100ms" in await stage.screen()
        await stage.press("ctrl+up", "enter")
        assert "So it is four of them." in await stage.screen()
        await stage.press("enter")
        assert "So it" not in await stage.screen()
        stage.deck.chat.transcript.action_thinking()
        assert "So it is four of them." in await stage.screen()
    async with staged(tmp_path, replies) as stage:
        assert "▸ thought · 6 tokens · 100ms" in await stage.screen()


async def test_the_key_that_copies_a_selection_is_told_while_there_is_one(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await talk(stage, "one")
        assert "ctrl+c" not in stage.deck.active_bindings or not any(
            active.enabled
            and active.binding.id == "chat.copy_selection"
            and active.node is stage.deck
            for active in stage.deck.active_bindings.values()
        )
        transcript = stage.deck.chat.transcript
        await stage.pilot.mouse_down(transcript, offset=(3, 4))
        await stage.pilot.hover(transcript, offset=(8, 4))
        await stage.pilot.mouse_up(transcript, offset=(8, 4))
        active = stage.deck.active_bindings["ctrl+c"]
        assert (active.binding.description, active.enabled) == ("Copy selection", True)


async def test_a_reply_that_was_stopped_says_how_to_go_on_with_it(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await stage.send("long")
        await stage.turn(5)
        stage.deck.action_run("chat.stop")
        await stage.turn()
        # The key stands before the figures, which a narrow screen cuts.
        assert "stopped · alt+c continues it · 5 tok" in stage.transcript
        await stage.press("alt+c")
        await stage.finish()
        assert "continues it" not in stage.transcript
