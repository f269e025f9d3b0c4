"""OwnFile: the settings that were changed in the interface, stored beside the chats.

The user's own configuration file is never written: it has comments, and may be under version
control. This file overrides it, and is overridden by flags and environment.
"""

from __future__ import annotations

import json
import os
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from app.settings.settings import Settings, SettingsError
from app.system.private import create_folder

NAME = "interface.toml"
_HEAD = "# Written by the settings of batchdeck's interface (F9).\n"
_Tree = dict[str, object]


class OwnFile:
    """A TOML file with the settings that the interface has changed."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME

    def read(self) -> _Tree:
        """Its settings; empty if it does not exist.

        Raises:
            SettingsError: it cannot be read, or is no TOML.
        """
        try:
            return tomllib.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise SettingsError(f"{self.path}: {reason}") from None

    def state(self, table: str, name: str, value: str | float | None) -> None:
        """Store a setting, or remove it if the value is None. The file is always complete, even
        after a crash, and readable by its owner only.

        Args:
            table: "" for settings outside all tables.

        Raises:
            SettingsError: the file cannot be read or written.
        """
        tree = self.read()
        place = tree.setdefault(table, {}) if table else tree
        if not isinstance(place, dict):
            raise SettingsError(f"{self.path}: {table} is {place!r}; it must be a table")
        if value is None:
            place.pop(name, None)
        else:
            place[name] = value
        try:
            self._write(_toml(tree))
        except OSError as error:
            raise SettingsError(f"{self.path}: {error.strerror}") from None

    def _write(self, text: str) -> None:
        folder = self.path.parent
        create_folder(folder)
        # `mkstemp` makes the file for its owner only.
        descriptor, name = tempfile.mkstemp(dir=folder, prefix=f".{NAME}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, self.path)
        except BaseException:
            os.unlink(name)
            raise


def _toml(tree: Mapping[str, object]) -> str:
    """Settings as TOML: values first, then tables of values."""
    plain = {name: value for name, value in tree.items() if not isinstance(value, dict)}
    parts = [_HEAD, *_lines(plain)]
    for name, table in tree.items():
        if isinstance(table, dict) and table:
            parts += [f"\n[{name}]\n", *_lines(table)]
    return "".join(parts)


def _lines(values: Mapping[str, object]) -> list[str]:
    # JSON's texts, numbers and booleans are those of TOML, which forbids lone surrogates.
    dump = partial(json.dumps, ensure_ascii=False)
    return [f"{dump(name)} = {dump(value)}\n" for name, value in values.items()]


@dataclass(frozen=True, slots=True)
class OwnSettings:
    """The interface's part of the settings.

    Attributes:
        file: the file for changes.
        base: the settings without the file.
        fixed: for each setting that overrides the file, as (table, name), its source: a change
            takes effect at the first start without it.
    """

    file: OwnFile
    base: Settings
    fixed: Mapping[tuple[str, str], str] = field(default_factory=dict)
