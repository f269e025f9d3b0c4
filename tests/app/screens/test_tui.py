from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
import threading
from functools import partialmethod
from pathlib import Path

import pytest
from textual import events

from app.process.exits import ExitCode
from app.screens import tui
from app.screens.pump import Pump
from app.screens.tui import Tui, run
from app.settings.settings import Settings, SettingsError
from app.store.store import Store
from app.system.engine_crash import EngineCrashError
from engine.api.client import ChatMessage, LoadRequest
from engine.api.lifecycle import FinishReason
from engine.api.status import EnginePhase
from tests.app.screens.stage import Stage, staged
from tests.support.scripted_core import BASE
from tests.support.scripted_engine import ScriptedEngine

REPLIES = {"one": "The first reply.", "long": "word " * 400}


async def test_the_screen_is_painted_before_the_engine_is_told_to_load(tmp_path: Path) -> None:
    painted: list[bool] = []

    class Engine(ScriptedEngine):
        def load(self, request: LoadRequest) -> None:
            painted.append(app.deck.chat.prompt.area.region.width > 0)
            super().load(request)

    store = Store(tmp_path / "s.db")
    app = Tui(Engine(loaded=False), store, Settings(data_dir=tmp_path), LoadRequest("m"))
    async with app.run_test() as pilot:
        await pilot.pause()
        assert painted == [True]
    store.close()


@pytest.mark.parametrize("wanted", [True, False])
async def test_the_system_prompt_is_pinned_if_wanted(wanted: bool, tmp_path: Path) -> None:
    pinned: dict[str, tuple[ChatMessage, ...]] = {}

    class Engine(ScriptedEngine):
        def pin(self, name: str, messages: tuple[ChatMessage, ...]) -> None:
            pinned[name] = messages

    store = Store(tmp_path / "s.db")
    settings = Settings(data_dir=tmp_path, system="Be brief.", pin_system=wanted)
    app = Tui(Engine(loaded=False), store, settings, LoadRequest("m"))
    async with app.run_test() as pilot:
        await pilot.pause()
    assert pinned == ({"system": (ChatMessage("system", "Be brief."),)} if wanted else {})
    store.close()


def test_the_interface_imports_only_what_the_first_screen_needs() -> None:
    # Neither torch, nor what is for a broker, nor the core, which is imported beside torch.
    code = (
        "import app.screens.tui, app.process.process, engine.serving.host, sys;"
        "heavy = {'torch', 'transformers', 'safetensors', 'aiomqtt', 'paho', "
        "'engine.core.core', 'engine.scheduling.policies'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


async def test_loading_shows_its_progress_and_its_end(tmp_path: Path) -> None:
    async with staged(tmp_path, ready=False) as stage:
        stage.engine.progress(600_000_000, 1_200_000_000)
        await stage.turn()
        assert "loading scripted" in await stage.screen()
        assert "0.6/1.1 GiB" in await stage.screen()
        stage.engine.ready()
        await stage.turn()
        assert stage.toasts == ["scripted is ready."]
        assert "scripted is ready. Ask anything." in await stage.screen()


async def test_a_model_without_a_chat_template_says_so_once(tmp_path: Path) -> None:
    async with staged(tmp_path, load=LoadRequest(BASE), ready=False) as stage:
        stage.engine.ready()
        await stage.turn()
        assert stage.toasts == [
            "base is ready. It has no chat template, so chats with it are completions: a reply ends"
            " where it writes the name of a role."
        ]
        assert "It has no chat template: it completes the text" in await stage.screen()
        await stage.send("one")
        await stage.finish()
        assert "base · completion · temp 0.7" in await stage.screen()
        assert len(stage.toasts) == 1


async def test_a_model_that_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    async with staged(tmp_path, ready=False) as stage:
        await stage.send("one")
        stage.engine.fail("could not load scripted: [weights] are missing")
        await stage.turn()
        assert stage.toasts == ["could not load scripted: [weights] are missing"]
        assert "· failed" in stage.transcript
        assert "[weights] are missing" in stage.transcript
        await stage.press("ctrl+n")
        assert "There is no model" in await stage.screen()


async def test_the_palette_runs_what_the_keys_do(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await stage.send("one")
        await stage.finish()
        await choose(stage, "new chat")
        assert len(stage.sessions.sessions) == 2
        await choose(stage, "close chat")
        assert len(stage.sessions.sessions) == 1


async def test_ctrl_c_knows_keys_that_were_changed(tmp_path: Path) -> None:
    async with staged(tmp_path, keys={"app.quit": "f10"}) as stage:
        await stage.press("f2", "ctrl+c")
        assert stage.toasts == ["f10 ends the program; ^c copies where text is selected."]


async def test_ctrl_c_copies_where_text_is_selected(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await stage.press(*"some", "ctrl+shift+left", "ctrl+c")
        assert stage.app.clipboard == "some"
        assert stage.toasts == []


async def test_quitting_stops_what_streams_and_ends_the_engine(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await stage.send("long")
        await stage.turn(3)
        key = stage.sessions.current.key
        await stage.press("ctrl+q")
        await stage.app.workers.wait_for_complete()
        assert stage.app.ending.is_complete
        assert stage.engine.status().phase is EnginePhase.STOPPED
        reply = stage.store.messages(key)[1]
        assert reply.finish_reason is FinishReason.ABORT
        assert reply.content == "word word word"
        assert stage.app.return_code == 0


async def test_a_session_that_the_engine_does_not_end_is_closed_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.screens.ending.STOP_SECONDS", 0.0)
    async with staged(tmp_path, REPLIES) as stage:
        await stage.send("long")
        await stage.turn(3)
        monkeypatch.setattr(stage.engine, "abort", lambda request_id: None)
        key = stage.sessions.current.key
        await stage.press("ctrl+q")
        await stage.app.workers.wait_for_complete()
        assert stage.store.messages(key)[1].finish_reason is FinishReason.ABORT


async def test_an_engine_that_does_not_end_is_not_waited_for_forever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.screens.ending.SHUTDOWN_SECONDS", 0.01)
    freed = threading.Event()
    async with staged(tmp_path) as stage:
        monkeypatch.setattr(stage.engine, "shutdown", freed.wait)
        await stage.press("ctrl+q")
        await stage.app.workers.wait_for_complete()
        assert not stage.app.ending.is_complete
        freed.set()


async def test_what_nobody_looks_at_is_painted_more_rarely(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        usual = stage.deck.pump.cadence.stream
        stage.app.post_message(events.AppBlur())
        await stage.turn()
        assert stage.deck.pump.cadence.stream > usual
        stage.app.post_message(events.AppFocus())
        await stage.turn()
        assert stage.deck.pump.cadence.stream == usual


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (
            {"theme": "pink"},
            "theme is 'pink'; allowed are dark, light, contrast, ansi, ansi-light, ",
        ),
        (
            {"keys": {"app.qiut": "f9"}},
            "keys.app.qiut is not a key; allowed are app.help, app.palette, ",
        ),
    ],
)
def test_what_the_interface_does_not_know_is_refused_with_what_is_allowed(
    wrong: dict[str, object], told: str, tmp_path: Path
) -> None:
    store = Store(tmp_path / "s.db")
    settings = Settings.model_validate({"data_dir": tmp_path, **wrong})
    engine = ScriptedEngine()
    with pytest.raises(SettingsError, match=re.escape(told)):
        run(engine, store, settings, LoadRequest("m"))
    assert engine.status().phase is EnginePhase.STOPPED
    store.close()


async def test_keys_are_changed_by_the_settings(tmp_path: Path) -> None:
    keys = {"prompt.send": "ctrl+s", "prompt.newline": "enter"}
    async with staged(tmp_path, REPLIES, keys=keys) as stage:
        await stage.press(*"on", "enter", "e")
        assert stage.prompt == "on\ne"
        assert "(^s send · enter newline" in str(stage.deck.chat.prompt.area.placeholder)
        await stage.press("ctrl+s")
        assert stage.prompt == ""
        assert stage.sessions.current.history == ("on\ne",)


def test_a_crash_is_raised_once_the_terminal_is_itself_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = ScriptedEngine(loaded=False)
    store = Store(tmp_path / "s.db")

    def crash(*_: object) -> None:
        raise RuntimeError("the pump broke")

    monkeypatch.setattr(Pump, "_poll_engine", crash)
    monkeypatch.setattr(Tui, "run", partialmethod(Tui.run, headless=True))
    with pytest.raises(RuntimeError, match="the pump broke"):
        run(engine, store, Settings(data_dir=tmp_path), LoadRequest("m"))
    assert engine.status().phase is EnginePhase.STOPPED
    store.close()


async def test_an_engine_that_crashes_ends_it(tmp_path: Path) -> None:
    engine, store = ScriptedEngine(loaded=False), Store(tmp_path / "s.db")
    app = Tui(engine, store, Settings(data_dir=tmp_path), LoadRequest("m"))
    async with asyncio.timeout(20), app.run_test() as pilot:
        await pilot.pause()
        engine.fail("could not load m: it is broken")
        await pilot.pause(2 * tui.LOOK_SECONDS)
        assert app.is_running, "another model may be loaded"
        engine.crash("the text thread failed: Panic: a bug")
        while app.is_running:
            await asyncio.sleep(0.01)
    assert app.return_code == ExitCode.CRASHED
    assert isinstance(app.crash, EngineCrashError)
    assert str(app.crash) == "the text thread failed: Panic: a bug"
    store.close()


@pytest.mark.parametrize("late", [True, False])
def test_sigterm_quits_as_the_user_does(
    late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the loop runs, too: it then came to a handler whose exit Textual swallowed."""
    engine = ScriptedEngine(REPLIES, loaded=False)
    store = Store(tmp_path / "s.db")

    def headless(app: Tui) -> None:
        async def main() -> None:
            async with asyncio.timeout(20):
                async with app.run_test() as pilot:
                    if late:
                        await pilot.pause()
                        signal.raise_signal(signal.SIGTERM)
                    while app.is_running:
                        await asyncio.sleep(0)

        if not late:
            signal.raise_signal(signal.SIGTERM)
        asyncio.run(main())

    monkeypatch.setattr(Tui, "run", headless)
    before = signal.getsignal(signal.SIGTERM)
    code = run(engine, store, Settings(data_dir=tmp_path), LoadRequest("m"))
    assert code == ExitCode.TERMINATED
    assert signal.getsignal(signal.SIGTERM) is before
    assert engine.status().phase is EnginePhase.STOPPED
    store.close()


async def choose(stage: Stage, words: str) -> None:
    """Run the first command that the palette finds by `words`."""
    await stage.press("ctrl+p")
    await stage.settle()
    await stage.pilot.press(*words)
    await stage.app.workers.wait_for_complete()
    await stage.settle()
    await stage.pilot.press("enter")
    await stage.settle()
    await stage.app.workers.wait_for_complete()
