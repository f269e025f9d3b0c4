"""Preference: one thing that a user can change in the interface."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """One thing that can be changed.

    Attributes:
        table, name: the setting, as the configuration file has it.
        section: what it belongs to.
        label, meaning: for people.
        value: as text.
        choices: what it can be, if that is a few texts.
    """

    table: str
    name: str
    section: str
    label: str
    meaning: str
    value: str
    choices: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return f"{self.table}.{self.name}"


class Preferring(Protocol):
    """Shows and changes preferences. A change or a reset returns why it cannot be; empty if it
    can."""

    def all(self) -> list[Preference]: ...

    def change(self, table: str, name: str, text: str) -> str: ...

    def reset(self, table: str, name: str) -> str: ...

    def stated_elsewhere(self, table: str, name: str) -> str:
        """The flag or variable that goes before what is kept; empty if there is none."""
        ...
