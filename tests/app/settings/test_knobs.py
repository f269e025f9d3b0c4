from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.settings.knobs import find_policy, parse_knob
from engine.api.errors import InvalidConfigError
from engine.scheduling.policies import POLICIES, policy_names

OWN = """
from engine.scheduling.composer import Policy

class Own(Policy):
    name = "own"

    def compose(self, step):
        pass

class Nameless(Own):
    name = ""

class Orca(Own):
    name = "orca"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with a module of policies; what they change is taken back."""
    (tmp_path / "own_policies.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    # As for a script that is installed.
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    monkeypatch.setattr("engine.scheduling.policies.POLICIES", POLICIES.copy())
    # Other tests may have one of this name, and have looked for it.
    sys.modules.pop("own_policies", None)
    importlib.invalidate_caches()
    yield tmp_path
    sys.modules.pop("own_policies", None)


def test_a_text_is_a_name_and_a_value_of_its_type() -> None:
    texts = {
        "order=fair": ("order", "fair"),
        " max_num_seqs = 8 ": ("max_num_seqs", 8),
        "watermark=1": ("watermark", 1.0),
        "paused=True": ("paused", True),
        "user_weights=anna=2,bob=0.5": ("user_weights", "anna=2,bob=0.5"),
        "policy=nope": ("policy", "nope"),
        "nope=1": ("nope", "1"),
        "__init__=1": ("__init__", "1"),
    }
    for text, (name, value) in texts.items():
        parsed = parse_knob(text)
        assert parsed == (name, value)
        assert type(parsed[1]) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    {
        "paused": "'paused' is not a knob; it must be name=value",
        "=1": "'=1' is not a knob; it must be name=value",
        "max_num_seqs=8.5": "max_num_seqs is '8.5'; it must be an integer",
        "ageing=long": "ageing is 'long'; it must be a number",
        "paused=1": "paused is '1'; it must be true or false",
    }.items(),
)
def test_another_form_or_type_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        parse_knob(text)
    assert caught.value.message == message


def test_a_policy_in_the_current_folder_is_found(folder: Path) -> None:
    assert find_policy("own_policies:Own") == "own"
    assert parse_knob("policy=own_policies:Own") == ("policy", "own")
    assert policy_names() == (*POLICIES, "own")


def test_a_file_there_hides_no_module_of_the_program(folder: Path) -> None:
    (folder / "engine.py").write_text("raise AssertionError")
    (folder / "logging.py").write_text("raise AssertionError")
    find_policy("own_policies:Own")
    assert sys.path[-1] == ""


@pytest.mark.parametrize(
    ("stated", "part"),
    {
        "own_policies:Other": "could not be loaded: AttributeError: module 'own_policies' has no",
        "no_such_module:Own": "could not be loaded: ModuleNotFoundError: No module named",
        "own_policies:Policy": "Policy must be a class that derives from",
        "json:dumps": "dumps must be a class that derives from",
        "own_policies:Nameless": "its name is '', which must be a name of its own beside",
        "own_policies:Orca": "its name is 'orca', which must be a name of its own beside",
        ":Own": "could not be loaded: ValueError: Empty module name",
        "own_policies:": "could not be loaded: AttributeError",
    }.items(),
)
def test_what_is_no_policy_is_refused_in_a_sentence(stated: str, part: str, folder: Path) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        find_policy(stated)
    assert caught.value.message.startswith(f"policy is {stated!r}; ")
    assert part in caught.value.message
    assert "\n" not in caught.value.message
    assert policy_names() == tuple(POLICIES)
