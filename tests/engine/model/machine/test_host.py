"""The memory of a host, with what control groups of both versions leave of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from engine.model.machine import host
from engine.model.machine.host import host_memory

V2 = ("memory.max", "memory.current", "")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where control groups lie, on a machine of 1,000 bytes of which 600 are free."""
    monkeypatch.setattr(
        psutil, "virtual_memory", lambda: SimpleNamespace(total=1000, available=600)
    )
    monkeypatch.setattr(host, "CGROUPS", tmp_path / "groups")
    monkeypatch.setattr(host, "OWN_GROUPS", tmp_path / "own")
    return tmp_path / "groups"


def group(folder: Path, names: tuple[str, str, str], limit: str, used: int, cached: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    half = cached // 2
    fields = {"anon": used - cached, "active_file": half, "inactive_file": cached - half}
    lines = [f"{names[2]}{name} {value}\n" for name, value in fields.items()]
    (folder / "memory.stat").write_text("".join(lines))


def own(groups: Path, *lines: str) -> None:
    (groups.parent / "own").write_text("".join(f"{line}\n" for line in lines))


def test_without_groups_it_is_the_machine_s(groups: Path) -> None:
    assert host_memory() == (1000, 600)
    own(groups, "0::/user.slice/me")
    assert host_memory() == (1000, 600)


@pytest.mark.parametrize(
    ("line", "folder", "names"),
    [
        ("0::/box", "box", V2),
        ("0::/box/inner", "box", V2),
        ("4:memory:/box", "memory/box", V1),
        ("4:cpu,memory:/box", "memory/box", V1),
        # A container that has the path of the machine, and of the groups only its own.
        ("4:memory:/docker/4fa1", "memory", V1),
        ("0::/", ".", V2),
    ],
)
def test_a_group_s_limit_counts_and_pages_of_files_are_free(
    groups: Path, line: str, folder: str, names: tuple[str, str, str]
) -> None:
    own(groups, "3:cpuset:/box", line)
    group(groups / folder, names, "400", 300, 120)
    assert host_memory() == (400, 220)


@pytest.mark.parametrize("limit", ["max", str(2**63 - 4096)])
def test_a_group_without_a_limit_does_not_count(groups: Path, limit: str) -> None:
    own(groups, "0::/box")
    group(groups / "box", V2, limit, 300, 0)
    assert host_memory() == (1000, 600)


def test_the_narrowest_of_several_counts(groups: Path) -> None:
    own(groups, "0::/a/b/c")
    group(groups / "a", V2, "500", 450, 0)
    group(groups / "a/b", V2, "400", 100, 0)
    group(groups / "a/b/c", V2, "max", 90, 0)
    assert host_memory() == (400, 50)
    group(groups / "a/b", V2, "400", 500, 0)
    assert host_memory() == (400, 0)


def test_files_that_tell_something_else_do_not_count(groups: Path) -> None:
    own(groups, "0::/box")
    group(groups / "box", V2, "400", 300, 0)
    (groups / "box" / "memory.current").write_text("many\n")
    assert host_memory() == (1000, 600)
