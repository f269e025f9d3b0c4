"""UnreadableError: why a recorded pass is not read."""

from __future__ import annotations

from torch import nn

from engine.model.program.capture import Call


class UnreadableError(Exception):
    """A call that none of our kernels computes.

    Attributes:
        scope: the modules it was made in.
    """

    def __init__(self, message: str, scope: tuple[nn.Module, ...] = ()) -> None:
        super().__init__(message)
        self.scope = scope


def unreadable(call: Call, what: str) -> UnreadableError:
    """That a call does `what`, which is none of ours."""
    where = type(call.scope[-1]).__name__ if call.scope else "the model"
    return UnreadableError(f"{call.name} in {where} {what}", call.scope)
