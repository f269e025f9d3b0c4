"""Private: files and folders that hold chats, and are therefore for nobody but their owner."""

from __future__ import annotations

import logging
import os
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

log = logging.getLogger(__name__)

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def make_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing, for their owner only.

    Those above too, as the XDG Base Directory Specification asks of whoever makes them.

    Raises:
        OSError: one of them cannot be made.
    """
    for place in reversed((path, *path.parents)):
        place.mkdir(mode=0o700, exist_ok=True)


def make_file(path: Path) -> None:
    """Make an empty file for its owner only, unless it is there.

    Raises:
        OSError: it cannot be made.
    """
    path.touch(mode=0o600)


def tighten(*paths: Path) -> None:
    """Take from others what they may do with these, as far as they are there and ours.

    Earlier versions made them as the umask says, which mostly lets everybody read.
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
    """Likewise a folder, if it holds nothing but what begins with one of these names.

    Somebody may have set a folder that is for others too, such as /tmp or a home.
    """
    beginnings = tuple(names)
    try:
        if all(name.startswith(beginnings) for name in os.listdir(folder)):
            tighten(folder)
    except OSError as error:
        log.debug("%s cannot be listed: %s", folder, error.strerror)


def _is_ours(state: os.stat_result) -> bool:
    # On Windows the folder of a profile is its owner's, and there are no such modes.
    return sys.platform != "win32" and state.st_uid == os.geteuid()
