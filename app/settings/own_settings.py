"""OwnSettings: what the interface may change of the settings, and what they would be without."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.settings.own_file import OwnFile
from app.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class OwnSettings:
    """The interface's part of the settings.

    Attributes:
        file: where changes are kept.
        base: the settings without the file.
        fixed: for each setting that goes before the file, as (table, name), where it is stated: a
            change of it counts from the first start without that.
    """

    file: OwnFile
    base: Settings
    fixed: Mapping[tuple[str, str], str] = field(default_factory=dict)
