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
PROSE = re.sub(r"^```.*?^```$", "", DOC, flags=re.DOTALL | re.MULTILINE)
CODE = re.findall(r"`([^`\n]+)`", PROSE)
SHELL = [line for kind, block in FENCED if not kind for line in block.splitlines()]
PATHS = sorted(
    set(re.findall(r"(?<![\w/.])(?:app|docs|engine|tests|widgets)/[\w/.-]*[\w/]", DOC))
    | set(re.findall(r"\b[A-Z]+\.md\b|\bpyproject\.toml\b", DOC))
    | set(re.findall(r"\]\(([^)#]+)\)", DOC))
)
TARGETS = sorted(set(re.findall(r"(?:`|^)make ([a-z-]+)", DOC, re.MULTILINE)))
FILE = re.compile(r"\w+\.(?:py|hpp|cpp)")


@pytest.mark.parametrize("path", PATHS)
def test_each_path_is_there(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize("name", sorted({name for name in CODE if FILE.fullmatch(name)}))
def test_a_file_without_its_folder_lies_beside_one_that_has_it(name: str) -> None:
    folders = {ROOT / path if path.endswith("/") else (ROOT / path).parent for path in PATHS}
    assert any((folder / name).is_file() for folder in folders)


@pytest.mark.parametrize("target", TARGETS)
def test_each_target_is_one_of_make(target: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{target}:.* ## ", makefile, re.MULTILINE)


@pytest.mark.parametrize("name", sorted({name for name in CODE if name.isidentifier()}))
def test_each_name_stands_in_a_file_that_is_named(name: str) -> None:
    files = [ROOT / path for path in PATHS if (ROOT / path).is_file() and not path.endswith(".md")]
    inits = [ROOT / path / "__init__.py" for path in PATHS if path.endswith("/")]
    sources = (file.read_text(encoding="utf-8") for file in (*files, *inits) if file.exists())
    assert any(re.search(rf"\b{name}\b", source) for source in sources)


@pytest.mark.parametrize("tool", sorted(set(re.findall(r"\.venv/bin/([\w-]+)", DOC))))
def test_each_tool_is_set_up(tool: str) -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'"{tool}>=' in project


def test_it_has_every_recipe() -> None:
    examples = {path.name for path in (ROOT / "docs" / "examples").glob("*.py")}
    assert {Path(path).name for path in PATHS if path.startswith("docs/examples/")} - {
        "examples"
    } == examples
    assert (len(TARGETS), len(SHELL), len(FENCED)) == (5, 7, 4)


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
