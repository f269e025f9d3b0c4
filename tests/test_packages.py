"""Documents compared with the tree: the tour in docs/architecture.md, the docstrings of packages,
and the links of all documents."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOPS = ("engine", "app", "widgets", "benchmarks")
TOUR = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
DOCUMENTS = sorted(
    str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"))
)
SUFFIXES = {".py", ".cpp", ".hpp", ".txt", ".js", ".toml", ".html", ".md"}


def packages() -> list[str]:
    """The folders that hold source, from the root."""
    files = (path for top in TOPS for path in (ROOT / top).rglob("*"))
    return sorted(
        {
            str(path.parent.relative_to(ROOT))
            for path in files
            if path.suffix in {".py", ".cpp"} and "__pycache__" not in path.parts
        }
    )


def docstring(package: str) -> str:
    init = ROOT / package / "__init__.py"
    tree = ast.parse(init.read_text(encoding="utf-8") if init.exists() else "")
    return ast.get_docstring(tree) or ""


@cache
def tree() -> tuple[frozenset[str], frozenset[str]]:
    """The names of files and packages, and these without suffixes with all words of the sources."""
    tops = [ROOT / top for top in (*TOPS, "docs", "tests")]
    files = {path for top in tops for path in top.rglob("*") if path.suffix in SUFFIXES}
    files |= {path for path in ROOT.iterdir() if path.suffix in SUFFIXES}
    words = {
        word
        for path in files
        if path.suffix != ".md" and not path.is_relative_to(ROOT / "tests")
        for word in re.findall(r"\w+", without_docstring(path))
    }
    paths = {path.relative_to(ROOT) for path in files}
    names = {path.name for path in paths} | {str(path) for path in paths}
    names |= {f"{parent.name}/" for path in paths for parent in path.parents}
    names |= {f"{parent}/" for path in paths for parent in path.parents}
    words |= {Path(name).stem for name in names}
    return frozenset(names), frozenset(words)


def without_docstring(path: Path) -> str:
    """A source; of a package only its code, because its docstring is compared with the rest."""
    source = path.read_text(encoding="utf-8")
    if path.name != "__init__.py":
        return source
    body = ast.parse(source).body
    first = body[1].lineno if len(body) > 1 else len(source)
    return "\n".join(source.splitlines()[first - 1 :])


def unknown(text: str) -> list[str]:
    """The names in backticks that no source has."""
    files, words = tree()
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    quoted = {" ".join(name.split()) for name in re.findall(r"`([^`]+)`", prose)}
    commands = tuple(f"{word} " for word in ("python", "tui", "make"))
    missing = []
    for name in sorted(quoted):
        if re.fullmatch(r"[\w/.-]*\w(?:\.(?:py|cpp|hpp|js|toml|md)|/)", name):
            known = name in files
        elif name.startswith(commands) or not re.fullmatch(r"[A-Za-z_][\w.]*", name):
            known = True
        else:
            parts = name.split(".")
            known = (ROOT / "/".join(parts)).exists() or parts[-1] in words
        if not known:
            missing.append(name)
    return missing


def test_the_tour_has_a_row_for_each_package() -> None:
    rows = re.findall(r"^\| `([a-z0-9_/]+)/` \|", TOUR, re.MULTILINE)
    shown = {package for package in packages() if not package.startswith("benchmarks/")}
    assert sorted(rows) == sorted({*shown, "tests"})


def test_a_row_of_the_tour_is_the_first_sentence_of_the_packages_docstring() -> None:
    rows = dict(re.findall(r"^\| `([a-z0-9_/]+)/` \| (.+) \|$", TOUR, re.MULTILINE))
    firsts = {name: docstring(name).partition("\n\n")[0].replace("\n", " ") for name in rows}
    assert {name: rows[name] for name in rows if firsts[name]} == {
        name: first for name, first in firsts.items() if first
    }


def test_each_package_has_a_docstring() -> None:
    assert [
        name for name in packages() if name != "engine/native/src" and not docstring(name)
    ] == []


def test_names_in_the_tour_exist() -> None:
    assert unknown(TOUR) == []


@pytest.mark.parametrize("package", packages())
def test_names_in_a_packages_docstring_exist(package: str) -> None:
    assert unknown(docstring(package)) == []


def test_a_name_that_no_source_has_is_found() -> None:
    assert unknown("`EngineCore`, `no_such.py`, `NoSuchName`, `engine/nothing/`") == [
        "NoSuchName",
        "engine/nothing/",
        "no_such.py",
    ]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_between_documents_lead_to_a_heading(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"\s*\n\s*", "", text)):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = (ROOT / document).parent / name if name else ROOT / document
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


def anchors(file: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    prose = re.sub(r"^```.*?^```$", "", file.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_no_module_stands_above_the_packages() -> None:
    for top in ("engine", "app"):
        assert [path.name for path in (ROOT / top).glob("*.py")] == ["__init__.py"]


def test_tests_stand_in_packages_of_the_same_names() -> None:
    for top in TOPS:
        for test in (ROOT / "tests" / top).rglob("test_*.py"):
            package = test.parent.relative_to(ROOT / "tests")
            assert (ROOT / package).is_dir(), test
