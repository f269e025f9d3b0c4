"""Another model: chosen or typed in, refused with why, given up while it loads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from textual.app import SystemCommand
from textual.widgets import Input

from app.screens.dialogs.load_model import LoadModel
from app.screens.model_switch import ModelSwitch, ModelWish
from engine.api.client import LoadRequest
from engine.api.status import EnginePhase
from tests.app.screens.stage import REPLIES, Stage, staged
from tests.support.scripted_core import CONFIG


@pytest.fixture(autouse=True)
def _kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """This installation has kernels."""
    monkeypatch.setattr("app.system.machine.kernels", object)


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
        stage.app.models.to(ModelWish("second"))
        stage.engine.progress(1 << 20, 4 << 20)
        await stage.turn()
        titles = [c.title for c in stage.app.get_system_commands(stage.deck)]
        assert titles[0] == "Stop loading"
        stage.app.action_stop_loading()
        assert stage.engine.loads[-1].model == "scripted"
        stage.engine.ready()
        await stage.turn()
        assert stage.toasts == ["Loading is cancelled; scripted comes back.", "scripted is ready."]
        stage.app.action_stop_loading()
        await stage.turn()
        assert stage.toasts[-1] == "No model is being loaded."


async def test_where_no_model_was_the_built_in_one_comes(tmp_path: Path) -> None:
    async with staged(tmp_path, ready=False) as stage:
        stage.app.action_stop_loading()
        assert stage.engine.loads[-1].model == "builtin"


WIDTHS = ["none (as stored)", "int8", "int4"]


def widths(stage: Stage) -> dict[str, SystemCommand]:
    """The commands of the palette that quantize, by the width."""
    begin = "Quantize weights: "
    commands = stage.app.get_system_commands(stage.deck)
    return {c.title.removeprefix(begin): c for c in commands if c.title.startswith(begin)}


async def test_the_model_that_is_there_is_loaded_again_quantized(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        assert list(widths(stage)) == WIDTHS
        assert widths(stage)["none (as stored)"].help == "Now: weights as they are stored"
        assert widths(stage)["int8"].help == "Loads the model again, after running requests"
        await stage.send("long")
        await stage.turn(3)
        widths(stage)["int8"].callback()
        assert stage.engine.loads[-1] == LoadRequest("scripted", quantize="int8")
        await stage.turn()
        assert "1 request ends before scripted is loaded" in await stage.screen()
        stage.engine.ready()
        await stage.turn()
        now = widths(stage)["int8"]
        assert now.help == (
            "Now: weights quantized to int8: after 98.9% of 256 tokens the likeliest next token"
            " stays the same; divergence 0.0013 nats a token"
        )
        now.callback()
        await stage.turn()
        assert stage.toasts[-1].startswith("So it is: weights quantized to int8: after 98.9%")
        assert len(stage.engine.loads) == 2
        widths(stage)["none (as stored)"].callback()
        assert stage.engine.loads[-1] == LoadRequest("scripted", quantize="none")


async def test_another_model_is_quantized_as_the_program_was_started(
    tmp_path: Path, registry: Path
) -> None:
    """The user's choice for one model does not apply to the next."""
    async with staged(tmp_path, REPLIES) as stage:
        knows(stage, registry)
        for started in (None, "int4"):
            request = LoadRequest("first", models_file=str(registry), quantize=started)
            stage.app.models = ModelSwitch(stage.engine, request)
            widths(stage)["int8"].callback()
            stage.engine.ready()
            await open_dialog(stage)
            await stage.press(*"seco", "enter")
            assert stage.engine.loads[-1] == replace(request, model="second")
            stage.engine.ready()


@pytest.mark.parametrize("typed", ["second int4", "sec int4", "int4 ", "owner/name  int4"])
async def test_the_width_is_typed_behind_the_name(
    typed: str, tmp_path: Path, registry: Path
) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        knows(stage, registry)
        (await open_dialog(stage)).value = typed
        assert " int4 · " in await stage.screen()
        await stage.press(*(["down"] if typed == "int4 " else []), "enter")
        assert stage.engine.loads[-1].model == ("owner/name" if "/" in typed else "second")
        assert stage.engine.loads[-1].quantize == "int4"


async def test_a_gpu_quantizes_nothing_and_what_runs_goes_on(
    tmp_path: Path, registry: Path
) -> None:
    why = "weights are quantized on a processor only, and the device is cuda:0"
    async with staged(tmp_path, REPLIES, config=replace(CONFIG, device="cuda:0")) as stage:
        knows(stage, registry)
        await stage.send("long")
        await stage.turn(3)
        assert widths(stage)["int8"].help == f"Not here: {why}"
        widths(stage)["int8"].callback()
        await stage.turn()
        assert stage.toasts == [why]
        (await open_dialog(stage)).value = "second int8"
        await stage.press("enter")
        assert isinstance(stage.app.screen, LoadModel)
        assert stage.app.screen.refused == why
        assert len(stage.engine.loads) == 1
        await stage.press("escape")
        assert stage.sessions.current.chat.is_busy


async def test_without_kernels_nothing_is_quantized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.system.machine.kernels", lambda: None)
    monkeypatch.setattr("app.system.machine.why_not", lambda: "no compiler; install g++")
    async with staged(tmp_path) as stage:
        widths(stage)["int4"].callback()
        await stage.turn()
        assert stage.toasts[0].endswith("there are none: no compiler; install g++")
        assert len(stage.engine.loads) == 1


async def test_a_wish_that_failed_is_not_what_is_quantized(tmp_path: Path, registry: Path) -> None:
    """The model that came back is."""
    async with staged(tmp_path, REPLIES) as stage:
        knows(stage, registry)
        stage.app.models.to(ModelWish("second"))
        stage.engine.ready()
        stage.engine._status = replace(
            stage.engine.status(), model="scripted", detail="could not load second"
        )
        stage.app.models.to(ModelWish("", "int8"))
        assert (stage.engine.loads[-1].model, stage.engine.loads[-1].quantize) == (
            "scripted",
            "int8",
        )
