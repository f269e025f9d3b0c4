"""UnreadableError: why a recorded pass cannot be read."""

from __future__ import annotations

from torch import nn

from engine.model.program.capture import Call


class UnreadableError(Exception):
    """None of our kernels computes this call.

    Attributes:
        call: the call; None if it is unknown.
    """

    def __init__(self, message: str, call: Call | None = None) -> None:
        super().__init__(message)
        self.call = call

    @property
    def scope(self) -> tuple[nn.Module, ...]:
        """The modules in which the call was made; empty if it is unknown."""
        return () if self.call is None else self.call.scope


def unreadable(call: Call, what: str) -> UnreadableError:
    """Make the error that a call does `what`, which no kernel computes."""
    where = type(call.scope[-1]).__name__ if call.scope else "the model"
    return UnreadableError(f"{call.name} in {where} {what}", call)
