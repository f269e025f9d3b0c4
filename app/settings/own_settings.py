"""OwnSettings: the settings that the interface may change, and their values without its changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.settings.own_file import OwnFile
from app.settings.settings import Settings


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
