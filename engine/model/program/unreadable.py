"""UnreadableError: why a recorded pass cannot be read."""

from __future__ import annotations

from torch import nn

from engine.model.program.capture import Call


class UnreadableError(Exception):
    """None of our kernels computes this call.

    Attributes:
        scope: the modules in which it was made.
    """

    def __init__(self, message: str, scope: tuple[nn.Module, ...] = ()) -> None:
        super().__init__(message)
        self.scope = scope


def unreadable(call: Call, what: str) -> UnreadableError:
    """Make the error that a call does `what`, which no kernel computes."""
    where = type(call.scope[-1]).__name__ if call.scope else "the model"
    return UnreadableError(f"{call.name} in {where} {what}", call.scope)
