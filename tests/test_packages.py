"""The map in docs/architecture.md beside the tree: each package, and its docstring."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOPS = ("engine", "app", "widgets", "benchmarks")
MAP = dict(
    re.findall(
        r"^\| `([a-z0-9_/]+)/` \| (.+) \|$",
        (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
)


def packages() -> set[Path]:
    """The folders that hold source, from the root."""
    files = (path for top in TOPS for path in (ROOT / top).rglob("*"))
    return {
        path.parent.relative_to(ROOT)
        for path in files
        if path.suffix in {".py", ".cpp"} and "__pycache__" not in path.parts
    }


def test_the_map_has_every_package_and_no_other() -> None:
    assert MAP.keys() - {"tests"} == {str(package) for package in packages()}


def test_a_packages_docstring_is_what_the_map_says() -> None:
    for package in packages():
        init = ROOT / package / "__init__.py"
        if init.exists():
            docstring = ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) or ""
            assert " ".join(docstring.partition("\n\n")[0].split()) == MAP[str(package)], package


def test_no_module_stands_above_the_packages() -> None:
    for top in ("engine", "app"):
        assert [path.name for path in (ROOT / top).glob("*.py")] == ["__init__.py"]


def test_tests_stand_in_packages_of_the_same_names() -> None:
    for top in TOPS:
        for test in (ROOT / "tests" / top).rglob("test_*.py"):
            package = test.parent.relative_to(ROOT / "tests")
            assert (ROOT / package).is_dir(), test
