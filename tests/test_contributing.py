"""CONTRIBUTING.md names only what is there, and its code runs."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from engine.api.config import EngineConfig
from engine.api.errors import InvalidConfigError

ROOT = Path(__file__).parents[1]
DOC = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
FENCED = re.findall(r"^```([a-z ]*)\n(.*?)^```$", DOC, re.DOTALL | re.MULTILINE)
PATHS = sorted(
    set(re.findall(r"(?<![\w/.])(?:app|docs|engine|tests|widgets)/[\w/.-]*[\w/]", DOC))
    | set(re.findall(r"\b[A-Z]+\.md\b|\bpyproject\.toml\b", DOC))
    | set(re.findall(r"\]\(([^)#]+)\)", DOC))
)
TARGETS = sorted(set(re.findall(r"(?:`|^)make ([a-z-]+)", DOC, re.MULTILINE)))


def test_each_path_and_each_target_is_there() -> None:
    assert [path for path in PATHS if not (ROOT / path).exists()] == []
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert TARGETS
    assert [name for name in TARGETS if not re.search(rf"^{name}:", makefile, re.MULTILINE)] == []


def block(kind: str) -> str:
    (code,) = (code for name, code in FENCED if name == f"python {kind}")
    return code


def test_the_test_is_one() -> None:
    code = block("test")
    names = [node.name for node in ast.parse(code).body if isinstance(node, ast.FunctionDef)]
    assert [name[:5] for name in names] == ["test_"]
    scope: dict[str, Any] = {}
    exec(code, scope)
    scope[names[0]]()


@pytest.fixture
def knobs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """engine/api/knobs.py with the line of the recipe among its knobs."""
    source = (ROOT / "engine" / "api" / "knobs.py").read_text(encoding="utf-8")
    last = "    paused: bool = knob("
    assert source.count(last) == 1
    module = ModuleType("knobs_with_one_more")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(source.replace(last, block("knob") + last), module.__dict__)
    return module


def test_a_knob_is_one_line(knobs: ModuleType) -> None:
    config = EngineConfig(num_blocks=8, max_model_len=64)
    (spec,) = (spec for spec in knobs.KNOB_SPECS if spec.name == "max_new_prompts")
    assert str(spec.range(config, ())) == "from 0 to 4,096"
    assert (spec.unit, spec.step, spec.acts) == ("prompts", 2, "policy")
    changed = knobs.change_knobs(knobs.Knobs(), {"max_new_prompts": 3}, config, ("stall_free",))
    assert changed.max_new_prompts == 3
    with pytest.raises(
        InvalidConfigError, match=r"^max_new_prompts is -1; it must be from 0 to 4,096$"
    ):
        knobs.change_knobs(knobs.Knobs(), {"max_new_prompts": -1}, config, ("stall_free",))
