"""Lookups: the ids that a model looks up in place of its tokens' own.

A model that also takes images may look up another id for a token that stands for a picture. The
recorded pass need not contain such a token. So the pass's operations on ids are repeated with all
ids.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from engine.model.program.capture import NUM_TOKENS, Call, Capture
from engine.model.program.provenance import CASTS, address_of
from engine.model.program.unreadable import UnreadableError

# Functions that treat each id independently.
_COMPARE = ("eq", "ne", "lt", "le", "gt", "ge", "__eq__", "__ne__", "__lt__", "__le__", "__gt__")
_COMBINE = ("__or__", "__and__", "__invert__", "logical_or", "logical_and", "logical_not", "isin")
_CHOOSE = ("where", "masked_fill", "__setitem__", "clamp", "minimum", "maximum", "__ge__")
_COPY = ("clone", "contiguous", "long", "int", "detach", "view", "reshape", "unsqueeze")
_BY_ITSELF = frozenset((*_COMPARE, *_COMBINE, *_CHOOSE, *_COPY, *CASTS))


class Lookups:
    """The lookups of a recorded pass's embeddings."""

    def __init__(self, recorded: Capture) -> None:
        self._recorded = recorded
        self._found: dict[int, Tensor] = {}

    def add(self, ids: Tensor, by: Call) -> None:
        """Determine what a call with these ids looks up.

        Raises:
            UnreadableError: it depends on more than the token.
        """
        if address_of(ids) not in self._found:
            self._found[address_of(ids)] = _looked_up(ids, self._recorded, by)

    def common(self) -> Tensor | None:
        """The id that all embeddings look up for each token, [vocab_size] int64; None if it is the
        token's own.

        Raises:
            UnreadableError: they look up different ids.
        """
        found = list(self._found.values())
        if not all(torch.equal(found[0], other) for other in found):
            raise UnreadableError("its embeddings look up different ids")
        own = not found or torch.equal(
            found[0], torch.arange(len(found[0]), device=found[0].device)
        )
        return None if own else found[0]


def _looked_up(ids: Tensor, recorded: Capture, by: Call) -> Tensor:
    """The id that is looked up for each token."""
    vocab_size = recorded.logits.shape[-1]
    known = {address_of(recorded.input_ids): torch.arange(vocab_size, device=ids.device)}

    def of_all(value: Any) -> Any:
        if isinstance(value, Tensor) and address_of(value) in known:
            shape = [vocab_size if size == NUM_TOKENS else size for size in value.shape]
            return known[address_of(value)].view(shape)
        if isinstance(value, (tuple, list)):
            return type(value)(map(of_all, value))
        return value

    for call in recorded.calls:
        if call is by:
            break
        given = {address_of(one) for one in call.inputs}
        if not call.function or not given & known.keys():
            continue
        changed = {address_of(one.tensor) for one in call.changed}
        if call.function not in _BY_ITSELF:
            for address in changed:
                known.pop(address, None)
            continue
        try:
            assert callable(call.target)
            kwargs = {name: of_all(value) for name, value in call.kwargs.items()}
            result = call.target(*map(of_all, call.args), **kwargs)
        except (RuntimeError, TypeError):  # it needs a tensor of the recorded shape
            continue
        made = address_of(call.output) if isinstance(call.output, Tensor) else None
        if isinstance(result, Tensor) and made is not None and made not in given:
            known[made] = result
    found = known.get(address_of(ids))
    if found is None or found.numel() != vocab_size:
        raise UnreadableError("it looks up what depends on more than the token")
    return found.flatten()
