"""Figure: one thing that was measured, what it should be, and its line in a table."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from app.process.columns import row

_WIDTHS = (-4, -38, 9, -5, 8, -1)
HEAD = row(("part", "figure", "measured", "", "target", "against"), _WIDTHS)


@dataclass(frozen=True, slots=True)
class Figure:
    """One thing that was measured.

    Attributes:
        against: what it was measured with, or what it is to be compared with.
        relation: whether it should be less than the target (`<`), at least that (`>`) or the same
            (`=`).
        target: None if nothing is asked of it.
    """

    part: str
    name: str
    value: float
    unit: str = ""
    against: str = ""
    relation: str = ""
    target: float | None = None

    def below(self, target: float) -> Figure:
        """The same figure, which should be less than `target`."""
        return replace(self, relation="<", target=target)

    def exactly(self, target: float) -> Figure:
        """The same figure, which should be equal to `target`."""
        return replace(self, relation="=", target=target)

    def at_least(self, target: float) -> Figure:
        """The same figure, which should not be less than `target`."""
        return replace(self, relation=">", target=target)

    @property
    def is_met(self) -> bool:
        if self.target is None:
            return True
        if self.relation == ">":
            return self.value >= self.target
        return self.value < self.target if self.relation == "<" else self.value == self.target

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "is_met": self.is_met}

    def __str__(self) -> str:
        whole = self.value == int(self.value)
        digits = 0 if whole else 3 if abs(self.value) < 1 else 1
        target = "" if self.target is None else f"{self.relation} {self.target:g}"
        against = self.against if self.is_met else f"MISSED; {self.against}"
        value = f"{self.value:,.{digits}f}"
        return row((self.part, self.name, value, self.unit, target, against), _WIDTHS)
