"""Host memory: how much of it this process can use. A container may use less than its machine
has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import psutil

CGROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")

# Files of limit and usage, and the fields of memory.stat with file pages: the kernel reclaims these
# before an allocation fails, as it does outside of groups.
_V2 = ("memory.max", "memory.current", ("active_file", "inactive_file"))
_V1 = (
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    ("total_active_file", "total_inactive_file"),
)


class HostMemory(NamedTuple):
    """Memory in bytes.

    Attributes:
        total: the machine's, or the least limit of the process's control groups.
        free: available now, including file pages that the kernel would reclaim.
    """

    total: int
    free: int


def host_memory() -> HostMemory:
    """The host memory of this process."""
    machine = psutil.virtual_memory()
    limited = list(_groups())
    return HostMemory(
        min([machine.total, *(one.total for one in limited)]),
        max(min([machine.available, *(one.free for one in limited)]), 0),
    )


def _groups() -> Iterator[HostMemory]:
    """The control groups that limit this process: its own and their parents, of both versions."""
    try:
        lines = OWN_GROUPS.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _number, controllers, path = line.split(":", 2)
        if not controllers:
            files, root = _V2, CGROUPS
        elif "memory" in controllers.split(","):
            files, root = _V1, CGROUPS / "memory"
        else:
            continue
        # In a container the path may be the machine's, while the root is the container's.
        own = PurePosixPath(path)
        for group in (own, *own.parents):
            found = _read(root / group.relative_to("/"), *files)
            if found is not None:
                yield found


def _read(folder: Path, limit: str, used: str, cached: tuple[str, ...]) -> HostMemory | None:
    try:
        most, now = (folder / limit).read_text().strip(), int((folder / used).read_text())
        fields = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    if most == "max":
        return None
    held = now - sum(int(fields.get(name, 0)) for name in cached)
    return HostMemory(int(most), int(most) - held)
