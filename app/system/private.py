"""Private: makes files and folders readable by their owner only, because they hold chats."""

from __future__ import annotations

import logging
import os
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

log = logging.getLogger(__name__)

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def create_folder(path: Path) -> None:
    """Create a folder, and missing parents, for their owner only.

    Parents too, as the XDG Base Directory Specification requires.

    Raises:
        OSError: one of them cannot be created.
    """
    for place in reversed((path, *path.parents)):
        place.mkdir(mode=0o700, exist_ok=True)


def create_file(path: Path) -> None:
    """Create an empty file for its owner only, unless it exists.

    Raises:
        OSError: it cannot be created.
    """
    path.touch(mode=0o600)


def tighten(*paths: Path) -> None:
    """Remove other users' permissions from these, as far as they exist and are ours.

    Earlier versions created them with the umask's permissions, which mostly let everybody read.
    """
    for path in paths:
        try:
            state = path.stat()
            if not state.st_mode & _OTHERS or not _is_ours(state):
                continue
            mode = stat.S_IMODE(state.st_mode)
            path.chmod(mode & ~_OTHERS)
        except FileNotFoundError:
            continue
        except OSError as error:
            log.warning("%s is open to other users: %s", path, error.strerror)
        else:
            log.info("%s was open to other users (mode %03o); it no longer is", path, mode)


def tighten_folder(folder: Path, names: Iterable[str]) -> None:
    """As `tighten`, for a folder whose entries all begin with one of these names.

    The setting may name a folder that others use too, such as /tmp or a home.
    """
    beginnings = tuple(names)
    try:
        if all(name.startswith(beginnings) for name in os.listdir(folder)):
            tighten(folder)
    except OSError as error:
        log.debug("%s cannot be listed: %s", folder, error.strerror)


def _is_ours(state: os.stat_result) -> bool:
    # On Windows a profile's folder is private, and there are no such modes.
    return sys.platform != "win32" and state.st_uid == os.geteuid()
