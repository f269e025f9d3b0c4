"""The deck changes knobs, policies, pins and requests of the engine."""

from __future__ import annotations

from pathlib import Path

from textual.widgets import OptionList

from app.screens.dialogs.dialog import PickPolicy
from engine.scheduling.policies import policy_meanings
from tests.app.screens.stage import REPLIES, Stage, staged
from tests.support.scripted_engine import POLICIES


def _knob(stage: Stage, name: str) -> object:
    snapshot = stage.engine.snapshot()
    assert snapshot is not None
    return next(knob.requested for knob in snapshot.knobs if knob.name == name)


async def test_a_knob_is_turned_undone_and_refused(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(160, 48)) as stage:
        knobs = stage.deck.panels.knobs
        await stage.press("shift+tab", "6")
        assert knobs.has_focus
        knobs.current = "max_num_seqs"
        await stage.press("left")
        await stage.turn()
        assert _knob(stage, "max_num_seqs") == 16
        assert stage.engine.snapshot().knob_history[-1].who == "you"  # type: ignore[union-attr]
        await stage.press("u")
        await stage.turn()
        assert _knob(stage, "max_num_seqs") == 32
        await stage.press("down", "enter", *"7", "enter")
        await stage.turn()
        assert _knob(stage, "max_num_batched_tokens") == 512
        screen = await stage.screen()
        assert "✗ max_num_batched_tokens is 7; it must" in screen
        assert "max_num_seqs 32→16 by you" in screen
        assert "undo: max_num_seqs 16→32 by you" in screen


async def test_a_policy_is_chosen_and_its_effect_seen(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(160, 48)) as stage:
        await stage.send("long")
        await stage.turn(20)
        await stage.press("f2", "p")
        chooser = stage.app.screen
        assert isinstance(chooser, PickPolicy)
        options = chooser.query_one(OptionList)
        assert options.highlighted == POLICIES.index("stall_free")
        text = await stage.screen()
        assert "stall_free · now" in text
        assert policy_meanings()["prefill_first"] in text
        await stage.press(*["down"] * POLICIES.index("static"), "enter")
        await stage.turn(20)
        assert _knob(stage, "policy") == "static"
        snapshot = stage.engine.snapshot()
        assert snapshot is not None
        assert snapshot.knob_history[-1].who == "you"
        screen = await stage.screen()
        assert " static " in screen.splitlines()[0]
        assert "▼ policy stall_free→static after step 20 by you" in screen
        assert "policy stall_free→static by you" in screen  # in the log
        assert "not comparable: 1 came in 30s before" in screen  # nobody has come since
        assert "tok/s 50→50" not in screen
        for key, policy in (("escape", "static"), ("p", "static")):
            await stage.press("p", key)
            await stage.turn()
            assert stage.app.screen is stage.deck
            assert _knob(stage, "policy") == policy


async def test_without_a_model_there_is_no_policy_to_choose(tmp_path: Path) -> None:
    async with staged(tmp_path, ready=False) as stage:
        await stage.press("f2", "p")
        assert stage.app.screen is stage.deck
        assert stage.toasts == ["No model is loaded yet, so there is no policy to choose."]


async def test_the_system_prompt_is_pinned_and_let_go(tmp_path: Path) -> None:
    system = "Answer in one sentence. " * 10
    async with staged(tmp_path, REPLIES, size=(160, 48), system=system) as stage:
        stage.deck.action_run("pin-system-prompt")
        await stage.turn()
        assert "pin system 0/2 blk in the pool" in await stage.screen()
        stage.deck.action_run("unpin-system-prompt")
        await stage.turn()
        assert "pin system" not in await stage.screen()


async def test_without_a_system_prompt_nothing_is_pinned(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        stage.deck.action_run("pin-system-prompt")
        await stage.turn()
        assert stage.toasts == ["This chat has no system prompt."]
        snapshot = stage.engine.snapshot()
        assert snapshot is not None
        assert snapshot.pins == ()


async def test_the_session_table_goes_to_a_session_and_stops_one(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(160, 48)) as stage:
        await stage.send("long")
        await stage.press("ctrl+n")
        await stage.send("lines")
        await stage.turn(3)
        await stage.press("f2")
        table = stage.deck.panels.table
        assert table.has_focus
        assert stage.sessions.current.title == "lines"
        await stage.press("home", "enter")
        assert stage.sessions.current.title == "long"
        assert stage.deck.chat.prompt.area.has_focus
        await stage.press("f2", "x")
        await stage.turn()
        assert "stopped · alt+c continues it · 3 tok" in stage.transcript


async def test_the_table_has_one_row_a_conversation(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(160, 48)) as stage:
        for text in ("one", "two"):
            await stage.send(text)
            await stage.finish()
        snapshot = stage.engine.snapshot()
        assert snapshot is not None
        assert len(snapshot.requests) == 2
        stage.deck.pump.turn(everything=True)
        assert "Chats 1 " in await stage.screen()


async def test_undo_wherever_the_policy_is_chosen(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(80, 24)) as stage:
        await stage.press("f2")
        for panel in "12467":
            stage.engine.set_knobs({"max_num_seqs": 4}, "somebody")
            await stage.press(panel, "u")
            assert _knob(stage, "max_num_seqs") == 32, panel
            assert stage.toasts[-1] == "Undone: max_num_seqs 4→32.", panel
            await stage.press("u")
            assert stage.toasts[-1] == "There is no knob change to undo.", panel


async def test_undo_takes_back_a_turn_and_not_a_press(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(160, 48)) as stage:
        await stage.press("f2", "6")
        stage.deck.panels.knobs.current = "max_num_seqs"
        await stage.press("left", "left", "left", "u")
        assert stage.toasts == ["Undone: max_num_seqs 4→32."]
        assert _knob(stage, "max_num_seqs") == 32


async def test_the_palette_steers(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:

        async def choose(title: str) -> str:
            found = {c.title: c for c in stage.app.get_system_commands(stage.deck)}
            found[title].callback()
            await stage.turn()
            return found[title].help

        for title, start, end, name in (
            ("Pause or resume", "All requests stand still", "Paused now: all continue", "paused"),
            (
                *("Drain or stop draining", "Admit no new requests", "Draining now: admit again"),
                "draining",
            ),
        ):
            assert await choose(title) == start
            assert _knob(stage, name) is True
            assert await choose(title) == end
            assert _knob(stage, name) is False
        await choose("Undo the last knob change")
        assert _knob(stage, "draining") is True
        await choose("History of knobs")
        assert stage.deck.panels.knobs.history_shown
        assert stage.deck.panels.knobs.has_focus
        assert "undo: draining" in await stage.screen()


async def test_what_stands_still_is_paused(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(160, 48)) as stage:
        await stage.send("long")
        await stage.turn(3)
        assert "● decode" in await stage.screen()
        stage.engine.set_knobs({"paused": True}, "local")
        await stage.turn()
        screen = await stage.screen()
        assert "‖ paused" in screen
        assert "decode" not in screen.partition("Batch")[0]
        assert "paused · 3 tok" in stage.transcript
        assert "streaming" not in stage.transcript


async def test_a_policy_that_failed_is_told(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        stage.engine.set_knobs({"policy": "static"}, "local")
        await stage.turn()
        assert stage.toasts == []
        stage.engine.set_knobs({"policy": "stall_free"}, "static: ValueError: no")
        await stage.turn()
        assert stage.toasts == ["policy static→stall_free, for it failed: static: ValueError: no"]
        await stage.turn()
        assert len(stage.toasts) == 1
