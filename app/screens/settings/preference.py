"""Preference: one thing that a user can change in the interface."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """One thing that can be changed.

    Attributes:
        table, name: the setting, as the configuration file has it.
        section: what it belongs to.
        label: what it is called, for people.
        meaning: more of it; empty where the label says all.
        value: as text.
        shown: the value for people, where that is another text.
        allowed: what else it can be, where the value does not tell.
        choices: what it can be, if that is a few texts.
    """

    table: str
    name: str
    section: str
    label: str
    meaning: str
    value: str
    shown: str = ""
    allowed: str = ""
    choices: tuple[str, ...] = ()

    @property
    def question(self) -> str:
        """What it is asked for with."""
        return "; ".join(filter(None, (f"{self.label}: {self.meaning}", self.allowed)))

    @property
    def told(self) -> str:
        """All there is to know of it."""
        return " · ".join((": ".join(filter(None, (self.label, self.meaning))), self.id))

    @property
    def id(self) -> str:
        """How files and refusals call it."""
        return ".".join(filter(None, (self.table, self.name)))
