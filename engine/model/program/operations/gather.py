"""Gather: the rows that sample."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.model.program.graph import Value, View
from engine.model.program.operations.kerneled import Emitter, Kerneled, Numbers, TorchStep
from engine.model.program.pack import Product


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
