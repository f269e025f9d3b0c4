"""docs/a-step.md beside the modules that a plain step runs."""

from __future__ import annotations

import ast
import re
from functools import cache

from tests.support.plain_step import ROOT, files_of_a_plain_step

DOC = (ROOT / "docs/a-step.md").read_text(encoding="utf-8")
STATIONS, PARTS = DOC.split("## What hangs on it")
NAMED = re.findall(r"^- `(\S+\.py)`: (.*)$", STATIONS, re.MULTILINE)
FILES = {path for path, _names in NAMED}
ROWS = {
    title.strip(): set(re.findall(r"`(\S+\.py)`", files))
    for title, files, _joins in re.findall(r"^\| (.*) \| (`.*`) \| (.*) \|$", PARTS, re.MULTILINE)
}


@cache
def defined(path: str) -> frozenset[str]:
    """Functions and classes of a module, and the methods of its classes as `Class.method`."""
    names = set[str]()
    for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            of_class = [one.name for one in node.body if isinstance(one, ast.FunctionDef)]
            names.update(f"{node.name}.{method}" for method in of_class)
    return frozenset(names)


def test_each_name_is_in_its_file() -> None:
    for path, names in NAMED:
        assert set(re.findall(r"`([^`]+)`", names)) <= defined(path), path


def test_each_method_in_the_text_is_in_a_file_of_the_page() -> None:
    files = FILES.union(*ROWS.values())
    known = frozenset[str]().union(*map(defined, files))
    methods = set(re.findall(r"`([A-Z]\w+\.\w+)`", DOC))
    assert methods
    assert methods <= known


def test_a_plain_step_runs_the_files_of_the_stations_and_telemetry() -> None:
    assert files_of_a_plain_step() == FILES | ROWS["telemetry"]


def test_the_files_of_the_parts_exist() -> None:
    assert ROWS
    assert all((ROOT / path).is_file() for files in ROWS.values() for path in files)
