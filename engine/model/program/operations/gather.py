"""Gather: the rows that sample."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model.program.capture import Call
from engine.model.program.graph import Operation, Value, View
from engine.model.program.operations.kerneled import Emitter, Kerneled, Numbers, TorchStep
from engine.model.program.pack import Product
from engine.model.program.reading import Reading
from engine.model.program.unreadable import UnreadableError

_PICK = frozenset(("__getitem__", "index_select"))


@dataclass(eq=False)
class Gather(Kerneled):
    """Selects the rows that sample."""

    out: Value
    x: View

    def emit(self, to: Emitter, *products: Product) -> None:
        """See `Kerneled.emit`."""
        to.program.gather(to.place_of(self.out), to.place(self.x))

    def run(self, of: Numbers, step: TorchStep) -> Tensor:
        """See `Kerneled.run`."""
        return of(self.x)[step.last_tokens]


def read_gather(reading: Reading, call: Call, output: Tensor, out: Value) -> list[Operation] | None:
    """A pick of the rows that sample."""
    if call.function not in _PICK:
        return None
    x = reading.provenance.view(call.args[0])
    if out.per_sample and not x.value.per_sample and x.columns == out.width:
        rows = x.reference[reading.recorded.last_tokens]
        if torch.equal(rows, out.reference):
            return [Gather(out, x)]
    raise UnreadableError("it picks other rows than those that sample")
