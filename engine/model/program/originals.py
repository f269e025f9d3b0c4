"""Originals: a model's parameters, freed one by one as a program takes them over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from torch import Tensor

from engine.model.program.graph import Operation
from engine.model.program.weights import address_of


class Originals:
    """Counts the remaining uses of each parameter.

    Uses by opaque operations never end.

    Args:
        forget: called with each parameter that is no longer used.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        operations: Iterable[Operation],
        forget: Callable[[Tensor], None] = lambda parameter: None,
    ) -> None:
        self._forget = forget
        self._parameters: dict[int, list[Tensor]] = {}
        for parameter in parameters:
            self._parameters.setdefault(address_of(parameter), []).append(parameter)
        self._uses: Counter[int] = Counter()
        for operation in operations:
            self._uses.update(map(address_of, operation.matrices()))

    def give_up(self, operation: Operation) -> None:
        """End an operation's use of its matrices, which have been copied.

        Unused memory is freed once the caller no longer holds it.
        """
        addresses = [address_of(one) for one in operation.matrices()]
        operation.drop_weights()
        for address in addresses:
            self._uses[address] -= 1
            if not self._uses[address]:
                for parameter in self._parameters.pop(address, ()):
                    self._forget(parameter)
                    parameter.data = parameter.data.new_empty(0)
