"""The interface's changes have a file of their own, between the user's file and the rest."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from app.settings.layers import load_interface, load_settings
from app.settings.own_file import OwnFile
from app.settings.settings import SettingsError


def test_it_is_written_whole_for_its_owner_and_read_back(tmp_path: Path) -> None:
    file = OwnFile(tmp_path / "data")
    assert file.read() == {}
    file.state("", "theme", "contrast")
    file.state("keys", "app.quit", 'ctrl+"x')
    file.state("keys", "chat.find", "\U0001f600")
    file.state("alerts", "kv", 90.0)
    file.state("alerts", "bell", True)
    file.state("", "cadence", "frugal")
    assert file.read() == {
        "theme": "contrast",
        "cadence": "frugal",
        "keys": {"app.quit": 'ctrl+"x', "chat.find": "\U0001f600"},
        "alerts": {"kv": 90.0, "bell": True},
    }
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert os.listdir(file.path.parent) == [file.path.name]
    file.state("keys", "app.quit", None)
    file.state("keys", "chat.find", None)
    file.state("", "theme", None)
    assert file.read() == {"cadence": "frugal", "alerts": {"kv": 90.0, "bell": True}}


def test_a_write_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = OwnFile(tmp_path)
    file.state("", "theme", "light")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(SettingsError, match=r"interface\.toml: No space left on device"):
        file.state("", "theme", "dark")
    assert file.read() == {"theme": "light"}
    assert os.listdir(tmp_path) == [file.path.name]


def test_it_goes_before_the_users_file_and_after_environment_and_flags(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    text = '# mine\ntheme = "light"\n[keys]\n"app.quit" = "f10"\n"app.help" = "f12"\n'
    config.write_text(text)
    env = {"TUI_DATA_DIR": str(tmp_path)}
    file = OwnFile(tmp_path)
    file.state("", "theme", "contrast")
    file.state("keys", "app.quit", "f11")
    settings, own = load_interface({}, config, env)
    assert settings.theme == "contrast"
    assert settings.keys == {"app.quit": "f11", "app.help": "f12"}
    assert (own.base.theme, own.base.keys["app.quit"]) == ("light", "f10")
    assert load_interface({}, config, env | {"TUI_THEME": "nord"})[0].theme == "nord"
    settings, own = load_interface({"theme": "dracula"}, config, env)
    assert settings.theme == "dracula"
    assert own.fixed["", "theme"] == "--theme"
    assert load_settings({}, config, env).theme == "light", "of no command but the interface"
    assert config.read_text() == text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("theme = [", "interface.toml: "),
        ("pink = 1", "interface.toml: pink is not a setting; allowed are model, "),
        ("[alerts]\nkv = 'no'", "interface.toml: alerts.kv is 'no'; "),
        ("[alerts]\nfire = 1", "alerts.fire is not a setting; allowed are ttft, tpot, "),
        ("cadence = 'never'", "cadence is 'never'; it should be 'usual' or 'frugal'"),
    ],
)
def test_what_is_wrong_in_it_is_told_by_its_name(text: str, told: str, tmp_path: Path) -> None:
    OwnFile(tmp_path).path.write_text(text)
    with pytest.raises(SettingsError) as refused:
        load_interface({}, None, {"TUI_DATA_DIR": str(tmp_path), "TUI_CONFIG": ""})
    assert told in str(refused.value)
