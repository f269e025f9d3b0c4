"""Originals: a model's parameters, freed one by one as a program takes them over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from torch import Tensor

from engine.model.program.graph import Embed, Experts, Gated, Linear, Opaque, Operation
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
            match operation:
                case Linear(weights=weights) | Gated(weights=weights) | Experts(weights=weights):
                    self._uses.update(address_of(weight) for weight in weights)
                case Embed(table=table):
                    self._uses[address_of(table)] += 1
                case Opaque(replay=replay):
                    self._uses.update(map(address_of, replay.constants))
                    for module in replay.modules:
                        self._uses.update(map(address_of, module.parameters()))

    def give_up(self, operation: Linear | Gated | Experts | Embed) -> None:
        """End an operation's use of its weights, which have been copied, and remove them from it.

        Unused memory is freed once the caller no longer holds it.
        """
        if isinstance(operation, Embed):
            addresses = [address_of(operation.table)]
        else:
            addresses = [address_of(weight) for weight in operation.weights]
            operation.weights = operation.biases = ()
        for address in addresses:
            self._uses[address] -= 1
            if not self._uses[address]:
                for parameter in self._parameters.pop(address, ()):
                    self._forget(parameter)
                    parameter.data = parameter.data.new_empty(0)
