"""Graph: a forward pass as matrices and the operations between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import Field, dataclass
from typing import Any, ClassVar, Self

from torch import Tensor

from engine.model.program.weights import Weight


@dataclass(eq=False, slots=True)
class Value:
    """A matrix with a row for each token, or for each row that samples.

    Attributes:
        reference: [rows, width], from the recorded pass.
        per_sample: whether its rows are those that sample, not all tokens.
    """

    reference: Tensor
    per_sample: bool

    @property
    def width(self) -> int:
        return self.reference.shape[1]


@dataclass(frozen=True, slots=True)
class View:
    """Columns [column, column + columns) of a value."""

    value: Value
    column: int
    columns: int

    @property
    def is_whole(self) -> bool:
        return self.columns == self.value.width

    @property
    def reference(self) -> Tensor:
        return self.value.reference[:, self.column : self.column + self.columns]


class Operation:
    """Computes a matrix from others. The operations are dataclasses derived from this one.

    Attributes:
        in_torch: whether torch computes it, between two segments of a program.
        may_sample: whether it computes only the rows that sample, if no operation reads the others.
        out: the result.
    """

    in_torch: ClassVar[bool] = False
    may_sample: ClassVar[bool] = False
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    out: Value

    @property
    def kind(self) -> str:
        """The operation's name for people."""
        return type(self.definition).__name__.lower()

    @property
    def definition(self) -> Operation:
        """The operation itself, independent of its implementation."""
        return self

    @property
    def copied(self) -> View | None:
        """The view of which the result is a copy; None if it is none."""
        return None

    def picked(self, columns: Tensor) -> Self | None:
        """An operation that computes some columns of the result, in this order; None if no kernel
        does.
        """
        return None

    def reads(self) -> list[View]:
        """The views that it reads, in the order of its fields."""
        found: list[View] = []
        for _, value in self._fields():
            if isinstance(value, View):
                found.append(value)
            elif isinstance(value, tuple) and value and isinstance(value[0], View):
                found += value
        return found

    def redirect(self, change: Callable[[View], View]) -> None:
        """Replace each view that it reads."""
        for name, value in self._fields():
            if isinstance(value, View):
                setattr(self, name, change(value))
            elif isinstance(value, tuple) and value and isinstance(value[0], View):
                setattr(self, name, tuple(map(change, value)))

    def changes(self) -> list[tuple[View, Tensor]]:
        """The views that its first instructions change in place, with the recorded numbers after
        that.
        """
        return []

    @property
    def overwritten(self) -> View | None:
        """The view that its result may overwrite, where nothing else reads it."""
        return None

    def in_float32(self, out: bool) -> list[View]:
        """The views that it reads in float32, though the program has another type.

        Args:
            out: whether the result is in float32.
        """
        return []

    def reads_past(self, multiple: int) -> list[View]:
        """The views behind which it may read more columns, up to a multiple."""
        return []

    def matrices(self) -> tuple[Weight, ...]:
        """The model's matrices that it reads."""
        return ()

    def drop_weights(self) -> None:
        """Let go of weights that have been copied."""

    def _fields(self) -> Iterator[tuple[str, Any]]:
        return ((name, getattr(self, name)) for name in self.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class Graph:
    """Operations in order; the last one computes the logits.

    Attributes:
        looked_up: [vocab_size] int64, the id that embeddings look up for each token; None if it is
            the token's own.
    """

    operations: list[Operation]
    logits: Value
    looked_up: Tensor | None = None
