"""Another model: chosen or typed in, refused with why, given up while it loads."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.widgets import Input

from app.screens.dialogs.load_model import LoadModel
from app.screens.model_switch import ModelSwitch
from engine.api.client import LoadRequest
from engine.api.status import EnginePhase
from tests.app.screens.stage import REPLIES, Stage, staged


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    path = tmp_path / "models.toml"
    path.write_text('[first]\nsource = "builtin"\n[second]\nsource = "owner/name"\n')
    return path


def knows(stage: Stage, registry: Path) -> None:
    request = LoadRequest("scripted", models_file=str(registry), device="cpu")
    stage.app.models = ModelSwitch(stage.engine, request)


async def open_dialog(stage: Stage) -> Input:
    """Open the dialog; returns what one types into."""
    stage.app.action_load_model()
    await stage.app.workers.wait_for_complete()
    await stage.screen()
    assert isinstance(stage.app.screen, LoadModel)
    return stage.app.screen.query_one(Input)


async def test_the_palette_has_actions_first_and_models_on_request(
    tmp_path: Path, registry: Path
) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        knows(stage, registry)
        titles = [c.title for c in stage.app.get_system_commands(stage.deck)]
        assert titles[0] == "New chat"
        assert "Load model…" in titles
        assert "Stop loading" not in titles
        assert not {"first", "second"} & {word for title in titles for word in title.split()}
        assert titles.index("Quit") < titles.index("Policy: orca") < titles.index("Panel: KV")


async def test_a_model_of_the_registry_is_loaded_once_what_runs_has_ended(
    tmp_path: Path, registry: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "app.screens.model_switch")
    async with staged(tmp_path, REPLIES) as stage:
        knows(stage, registry)
        await stage.send("long")
        await stage.turn(3)
        await open_dialog(stage)
        await stage.press(*"seco", "enter")
        await stage.turn()
        wanted = LoadRequest("second", models_file=str(registry), device="cpu")
        assert stage.engine.loads[-1] == wanted
        assert "◐ 1 request ends before second is loaded " in await stage.screen()
        assert caplog.messages == ["switching from scripted to second"]
        await stage.press("ctrl+n")
        await stage.send("one")
        assert "queued: the model is being switched" in stage.transcript
        stage.engine.ready()
        await stage.finish()
        assert stage.toasts[-1] == "second is ready."
        assert "The first reply." in stage.transcript


@pytest.mark.parametrize("typed", ["owner/other", "./here.gguf"])
async def test_a_hub_id_or_a_file_is_typed_in(
    typed: str, tmp_path: Path, registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.gguf").touch()
    async with staged(tmp_path, REPLIES) as stage:
        knows(stage, registry)
        (await open_dialog(stage)).value = typed
        await stage.press("enter")
        assert stage.engine.loads[-1].model == typed


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        ("./nothere", "folder ./nothere does not exist"),
        ("./empty", "does not hold a model with its weights"),
        ("zzz", "model 'zzz' is unknown"),
    ],
)
async def test_what_cannot_be_loaded_is_refused_and_what_runs_goes_on(
    typed: str, why: str, tmp_path: Path, registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    async with staged(tmp_path, REPLIES) as stage:
        knows(stage, registry)
        await stage.send("long")
        await stage.turn(3)
        (await open_dialog(stage)).value = typed
        await stage.press("enter")
        assert isinstance(stage.app.screen, LoadModel)
        assert why in stage.app.screen.refused
        assert len(stage.engine.loads) == 1
        await stage.press("escape")
        await stage.turn(3)
        assert stage.engine.status().phase is EnginePhase.READY
        assert stage.sessions.current.chat.is_busy


async def test_a_broken_registry_is_told_and_a_model_can_still_be_typed(tmp_path: Path) -> None:
    registry = tmp_path / "models.toml"
    registry.write_text("[first")
    async with staged(tmp_path) as stage:
        knows(stage, registry)
        await open_dialog(stage)
        assert str(registry) in stage.toasts[0]


async def test_loading_is_given_up_and_the_model_before_comes_back(
    tmp_path: Path, registry: Path
) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        knows(stage, registry)
        stage.app.models.to("second")
        stage.engine.progress(1 << 20, 4 << 20)
        await stage.turn()
        titles = [c.title for c in stage.app.get_system_commands(stage.deck)]
        assert titles[0] == "Stop loading"
        stage.app.action_stop_loading()
        assert stage.engine.loads[-1].model == "scripted"
        stage.engine.ready()
        await stage.turn()
        assert stage.toasts == ["Loading is given up; scripted comes back.", "scripted is ready."]
        stage.app.action_stop_loading()
        await stage.turn()
        assert stage.toasts[-1] == "There is no loading to give up."


async def test_where_no_model_was_the_built_in_one_comes(tmp_path: Path) -> None:
    async with staged(tmp_path, ready=False) as stage:
        stage.app.action_stop_loading()
        assert stage.engine.loads[-1].model == "builtin"
