"""File paths: what a path may become that is being typed."""

from __future__ import annotations

import os

MOST = 100


def completed(begun: str) -> list[str]:
    """The files and folders of this machine that a path may be the beginning of. A folder ends with
    a slash; what is hidden is told once a dot is typed."""
    folder, start = os.path.split(begun)
    try:
        with os.scandir(os.path.expanduser(folder) or ".") as entries:
            found = [
                f"{entry.name}/" if entry.is_dir() else entry.name
                for entry in entries
                if entry.name.startswith(start)
                and entry.name.isprintable()
                and (start or not entry.name.startswith("."))
            ]
    except (OSError, ValueError):  # the latter for a null character
        return []
    return [os.path.join(folder, name) for name in sorted(found)[:MOST]]
