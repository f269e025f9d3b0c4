"""Provenance: where the tensors of a recorded pass come from, by the memory that they lie in."""

from __future__ import annotations

from torch import Tensor, nn

from engine.model.program.capture import Call, tensors_in
from engine.model.program.graph import Value, View
from engine.model.program.unreadable import UnreadableError

CASTS = frozenset(("to", "type", "type_as", "float", "bfloat16"))


class Provenance:
    """What is known so far of each piece of memory. All that the pass computed is held, so that an
    address names one.

    Attributes:
        values: by address, what was read.
        failures: why it was not.
        makers: which call made it.
    """

    def __init__(self) -> None:
        self.values: dict[int, Value] = {}
        self.failures: dict[int, UnreadableError] = {}
        self.makers: dict[int, Call] = {}

    def view(self, tensor: Tensor) -> View:
        """The columns of a value that a tensor shows."""
        address = address_of(tensor)
        value = self.values.get(address)
        if value is None:
            raise self.failures.get(address) or UnreadableError("a constant is used as a matrix")
        width, rows = value.width, len(value.reference)
        axes = [
            (size, stride)
            for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
            if size > 1
        ]
        if (rows, width) not in axes:
            raise UnreadableError("a tensor has its rows in another order")
        axes.remove((rows, width))
        columns = 1
        for size, stride in reversed(axes):
            if stride != columns:
                raise UnreadableError("a tensor has its columns in another order")
            columns *= size
        column = int(tensor.storage_offset()) - int(value.reference.storage_offset())
        if not 0 <= column <= width - columns:
            raise UnreadableError("a tensor leaves out rows")
        return View(value, column, columns)

    def sources(
        self, tensor: Tensor, through_casts: bool = False
    ) -> tuple[list[Tensor], dict[int, Call]]:
        """What a tensor was computed from: tensors of values that were read, and modules.

        Args:
            through_casts: whether a value that was only cast counts as the one that it was cast
                from.
        """
        found: list[Tensor] = []
        makers: dict[int, Call] = {}
        seen: set[int] = set()
        pending = [tensor]
        while pending:
            one = pending.pop()
            address = address_of(one)
            origin = self._before_cast(address) if through_casts else None
            if origin is not None:
                pending.append(origin)
            elif address in self.values:
                found.append(one)
            elif address not in seen and address in self.makers:
                seen.add(address)
                call = self.makers[address]
                if isinstance(call.target, nn.Module):
                    makers[id(call)] = call
                else:
                    # Views of the same memory by other calls do not tell where it came from.
                    pending += tensors_in((call.args, call.kwargs))
        return found, makers

    def _before_cast(self, address: int) -> Tensor | None:
        """What was cast to another type into this memory, if that is a value; else None."""
        call = self.makers.get(address)
        if address not in self.values or call is None or call.name not in CASTS:
            return None
        origin = call.args[0]
        cast = origin.dtype != self.values[address].reference.dtype
        return origin if cast and address_of(origin) in self.values else None


def address_of(tensor: Tensor) -> int:
    """The memory that a tensor and its views share."""
    return tensor.untyped_storage().data_ptr()
