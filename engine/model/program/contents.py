"""Contents: the content of memory during a recorded pass, if it was changed in place later."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from torch import Tensor

from engine.model.program.provenance import address_of
from engine.model.program.unreadable import UnreadableError
from engine.model.program.writes import Change


class Contents:
    """The numbers of tensors at one point of a recorded pass, which advances from call to call.

    Args:
        changes: changes of the whole pass, in order.
    """

    def __init__(self, changes: Iterable[Change]) -> None:
        self._before: dict[int, deque[Tensor | None]] = {}
        for change in changes:
            found = self._before.setdefault(address_of(change.tensor), deque())
            found.append(change.before)

    def pass_by(self, changes: Iterable[Change]) -> None:
        """Advance past a call that made these changes, the next ones of the pass."""
        for change in changes:
            self._before[address_of(change.tensor)].popleft()

    def of(self, tensor: Tensor) -> Tensor:
        """A tensor as it is at this point.

        Raises:
            UnreadableError: a module changes it in place later, so that its content is lost.
        """
        before = self._before.get(address_of(tensor))
        if not before:
            return tensor
        if before[0] is None:
            raise UnreadableError("a module changes its result in place")
        return before[0].as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
