"""read_opaque: reads a call of an opaque module as an operation."""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor, nn

from engine.model.program.capture import Call, tensors_in
from engine.model.program.graph import Opaque, Value
from engine.model.program.provenance import Provenance, address_of
from engine.model.program.unreadable import UnreadableError


def read_opaque(call: Call, module: nn.Module, provenance: Provenance, out: Value) -> Opaque:
    """The operation of a call of a module.

    Raises:
        UnreadableError: it has more than one tensor, or one without a row for each token.
    """
    result = call.output[0] if isinstance(call.output, tuple) else call.output
    given = tensors_in((call.args, call.kwargs))
    if len(given) != 1:
        raise UnreadableError("it is given more than one tensor")
    (x,) = given
    if not (
        isinstance(result, Tensor)
        and x.ndim == result.ndim == 3
        and x.shape[:2] == result.shape[:2]
        and address_of(result) == address_of(out.reference)
    ):
        raise UnreadableError("it takes or gives no [1, tokens, columns]")
    arguments = _by_name(module, call)
    names = [name for name, one in arguments.items() if one is x]
    if len(names) != 1:
        raise UnreadableError("it is given its tensor within something else")
    others = {name: one for name, one in arguments.items() if one is not x}
    return Opaque(out, provenance.view(x), module, names[0], others)


def _by_name(module: nn.Module, call: Call) -> dict[str, Any]:
    """The arguments of a module's call, by name."""
    signature = inspect.signature(module.forward)
    named: dict[str, Any] = {}
    for name, given in signature.bind(*call.args, **call.kwargs).arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            raise UnreadableError("it takes arguments that have no names")
        named |= given if kind is inspect.Parameter.VAR_KEYWORD else {name: given}
    return named
