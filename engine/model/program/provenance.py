"""Provenance: the origin of a recorded pass's tensors, by their place in memory."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine.model.program.capture import Call
from engine.model.program.graph import Operation, Value, View
from engine.model.program.layout import axes_of, columns_of, dense_steps, places
from engine.model.program.unreadable import UnreadableError

CASTS = frozenset(("to", "type", "type_as", "float", "bfloat16"))


class Provenance:
    """The facts known so far about each piece of memory. All results of the pass are kept, so that
    an address identifies one.

    Attributes:
        operations: operations read, in order.
        values: values read, by address.
        failures: reasons for unread values, by address.
        makers: calls that made values, by address.
    """

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._picked: dict[tuple[int, tuple[int, ...]], Value] = {}
        self.values: dict[int, Value] = {}
        self.failures: dict[int, UnreadableError] = {}
        self.makers: dict[int, Call] = {}

    def view(self, tensor: Tensor) -> View:
        """The columns of a value that a tensor shows.

        If they are not adjacent, but come from a product, they are the value of another product,
        whose matrix has the corresponding rows (`Operation.picked`).
        """
        address = address_of(tensor)
        value = self.values.get(address)
        if value is None:
            raise self.failures.get(address) or UnreadableError("a constant is used as a matrix")
        axes = axes_of(tensor, len(value.reference), value.width)
        if axes is None:
            raise UnreadableError("a tensor has its rows in another order")
        columns = columns_of(axes)
        columns += int(tensor.storage_offset()) - int(value.reference.storage_offset())
        first, last = int(columns.min()), int(columns.max())
        if not 0 <= first <= last < value.width:
            raise UnreadableError("a tensor leaves out rows")
        if torch.equal(columns, torch.arange(first, first + len(columns))):
            return View(value, first, len(columns))
        picked = self._pick(value, columns)
        return View(picked, 0, picked.width)

    def shows_whole(self, tensor: Tensor) -> bool:
        """Whether a tensor shows all of the value in its memory, in order."""
        view = self.view(tensor)
        return view.is_whole and view.value is self.values[address_of(tensor)]

    def like(self, tensor: Tensor, output: Tensor) -> View:
        """The view that a tensor shows, if its numbers are laid out like the output's.

        Raises:
            UnreadableError: they are laid out differently.
        """
        view = self.view(tensor)
        rows = len(view.reference)
        given = axes_of(tensor, rows, self.values[address_of(tensor)].width)
        made = axes_of(output, rows, view.columns)
        if given is None or made is None or tensor.numel() != output.numel():
            raise UnreadableError("its tensors have different layouts")
        # A view has its columns in the tensor's logical order.
        if not torch.equal(
            places(given, view.columns, dense_steps(given)), places(made, view.columns)
        ):
            raise UnreadableError("its tensors have different layouts")
        return view

    def origin(self, view: View) -> View:
        """The source of a view, before copies and casts."""
        maker = self.maker(view)
        copied = None if maker is None or not view.is_whole else maker.copied
        return view if copied is None else self.origin(copied)

    def maker(self, view: View) -> Operation | None:
        """The operation that computed the value of a view."""
        return next((one for one in self.operations if one.out is view.value), None)

    def picked(self, view: View, columns: Tensor) -> View:
        """Columns of a view in another order: another product, as in `view`.

        Raises:
            UnreadableError: the view does not show a product.
        """
        value = self._pick(view.value, columns + view.column)
        return View(value, 0, value.width)

    def _pick(self, value: Value, columns: Tensor) -> Value:
        key = id(value), tuple(columns.tolist())
        if key not in self._picked:
            maker = self.maker(View(value, 0, value.width))
            made = None if maker is None else maker.picked(columns)
            if made is None:
                raise UnreadableError("a tensor has its columns in another order")
            self.operations.append(made)
            self._picked[key] = made.out
        return self._picked[key]

    def sources(
        self, tensor: Tensor, through_casts: bool = False
    ) -> tuple[list[Tensor], dict[int, Call]]:
        """The sources of a tensor: tensors of values that were read, and modules.

        Args:
            through_casts: whether a cast value counts as its source.
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
                    # Views of the same memory by other calls do not show its origin.
                    pending += call.inputs
        return found, makers

    def _before_cast(self, address: int) -> Tensor | None:
        """The value that was cast to another type into this memory; None if there is none."""
        call = self.makers.get(address)
        if address not in self.values or call is None or call.name not in CASTS:
            return None
        origin = call.args[0]
        cast = origin.dtype != self.values[address].reference.dtype
        return origin if cast and address_of(origin) in self.values else None


def address_of(tensor: Tensor) -> int:
    """Address of the memory that a tensor and its views share."""
    return tensor.untyped_storage().data_ptr()
