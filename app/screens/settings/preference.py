"""Preference: one thing that a user can change in the interface."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """One thing that can be changed.

    Attributes:
        table, name: the setting, as the configuration file has it.
        section: what it belongs to.
        label, meaning: for people.
        value: as text.
        allowed: what else it can be, where the value does not tell.
        choices: what it can be, if that is a few texts.
    """

    table: str
    name: str
    section: str
    label: str
    meaning: str
    value: str
    allowed: str = ""
    choices: tuple[str, ...] = ()

    @property
    def question(self) -> str:
        """What it is asked for with."""
        return "; ".join(filter(None, (f"{self.label}: {self.meaning}", self.allowed)))

    @property
    def id(self) -> str:
        return f"{self.table}.{self.name}"
