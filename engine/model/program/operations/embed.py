"""Embed: rows of a table, looked up by token or position.

A model that also takes images may look up another id for a token that stands for a picture. The
recorded pass need not contain such a token. So the pass's operations on ids are repeated with all
ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from engine.model.program.agree import agree
from engine.model.program.capture import NUM_TOKENS, Call, Capture
from engine.model.program.graph import Operation, Value, View
from engine.model.program.operations.elementwise import Elementwise
from engine.model.program.operations.kerneled import Emitter, Kerneled, Numbers, TorchStep
from engine.model.program.pack import Packer, Product
from engine.model.program.provenance import CASTS, address_of
from engine.model.program.reading import Reading
from engine.model.program.unreadable import UnreadableError
from engine.model.program.weights import Weight

# Functions that treat each id independently.
_COMPARE = ("eq", "ne", "lt", "le", "gt", "ge", "__eq__", "__ne__", "__lt__", "__le__", "__gt__")
_COMBINE = ("__or__", "__and__", "__invert__", "logical_or", "logical_and", "logical_not", "isin")
_CHOOSE = ("where", "masked_fill", "__setitem__", "clamp", "minimum", "maximum", "__ge__")
_COPY = ("clone", "contiguous", "long", "int", "detach", "view", "reshape", "unsqueeze")
_BY_ITSELF = frozenset((*_COMPARE, *_COMBINE, *_CHOOSE, *_COPY, *CASTS))


@dataclass(eq=False)
class Embed(Kerneled):
    """Looks up rows of a table.

    Attributes:
        table: [rows, width].
        positions: whether rows are looked up by position, not by token id.
    """

    packs_last: ClassVar[bool] = True
    # Scales are products of two in some files, and are rounded to float16; if codes were
    # recognized, numbers had been rounded to bfloat16.
    coded_tolerance: ClassVar[float] = 0.005
    out: Value
    table: Tensor
    positions: bool

    def matrices(self) -> tuple[Weight, ...]:
        """See `Operation.matrices`."""
        return (self.table,)

    def pack(self, packer: Packer) -> tuple[Product, ...]:
        """Pack its table, or find it packed by the product to which it is tied."""
        packed = packer.table(self.table)
        if packed is not None:
            packer.give_up(self)
            weight, how = packed
            return (Product(weight, None, how, 0, self.out.width),)
        table = packer.dense(self.table).contiguous()
        if packer.is_compact(self.table):
            packer.give_up(self)
        return (Product(table, None, None, 0, self.out.width, is_packed=False),)

    def emit(self, to: Emitter, *products: Product) -> None:
        """See `Kerneled.emit`."""
        (product,) = products
        to.program.embed(
            out=to.place_of(self.out),
            table=product.weight,
            vocab_size=len(self.table),
            packed=product.is_packed,
            positions=self.positions,
            quantization=product.how,
        )

    def run(self, of: Numbers, step: TorchStep) -> Tensor:
        """See `Kerneled.run`."""
        return self.table[step.positions if self.positions else step.ids]


def read_embed(reading: Reading, call: Call, output: Tensor, out: Value) -> list[Operation] | None:
    """A lookup of tokens or positions by a module, or by a function within a module that does
    more.
    """
    if call.function == "embedding" and len(call.args) > 1:
        ids, weight = call.args[:2]
    elif isinstance(call.target, nn.Module):
        ids, weight = _ids(reading, call.inputs), getattr(call.target, "weight", None)
    else:
        return None
    if ids is None or not isinstance(weight, Tensor) or weight.ndim != 2:
        return None
    return _embed(reading, call, ids, weight, out)


def common_lookup(looked_up: Mapping[int, Tensor]) -> Tensor | None:
    """The id that all embeddings look up for each token, [vocab_size] int64; None if it is the
    token's own.

    Args:
        looked_up: see `Reading.looked_up`.

    Raises:
        UnreadableError: they look up different ids.
    """
    found = list(looked_up.values())
    if not all(torch.equal(found[0], other) for other in found):
        raise UnreadableError("its embeddings look up different ids")
    own = not found or torch.equal(found[0], torch.arange(len(found[0]), device=found[0].device))
    return None if own else found[0]


def _ids(reading: Reading, inputs: list[Tensor]) -> Tensor | None:
    """Integers that may look up rows, if the other inputs are the same in each step."""
    ids = next((one for one in inputs if not one.is_floating_point()), None)
    others = (one for one in inputs if one is not ids)
    return None if any(map(reading.varies, others)) else ids


def _embed(
    reading: Reading, call: Call, given: Tensor, weight: Tensor, out: Value
) -> list[Operation]:
    ids = given.flatten()
    tokens, positions = reading.recorded.input_ids, reading.recorded.position_ids
    table = weight.detach()
    if len(ids) != len(tokens):
        raise UnreadableError("it looks up neither tokens nor positions")
    by_position = not torch.equal(ids, tokens)
    if by_position:
        table = table[int(ids[0] - positions[0]) :]
        if not torch.equal(ids - ids[0], positions):
            raise UnreadableError("it looks up neither tokens nor positions")
    elif address_of(given) not in reading.looked_up:
        reading.looked_up[address_of(given)] = _looked_up(given, reading.recorded, call)
    if by_position and not agree(table[:1], out.reference[:1]):
        # A module may add an offset itself (OPT).
        table = table[int((table.float() - out.reference[0].float()).norm(dim=1).argmin()) :]
        if len(table) <= int(positions[-1]):
            raise UnreadableError("it has no row for each position")
    rows = table[positions if by_position else tokens].double()
    scale = float((rows * out.reference).sum() / rows.square().sum())
    if not agree(rows * scale, out.reference):
        raise UnreadableError("it is not a table of rows")
    if abs(scale - 1) < 1e-6:
        return [Embed(out, table, by_position)]
    inner = Value(rows.to(out.reference.dtype), per_sample=False)
    return [
        Embed(inner, table, by_position),
        Elementwise(out, View(inner, 0, inner.width), alpha=scale),
    ]


def _looked_up(ids: Tensor, recorded: Capture, by: Call) -> Tensor:
    """The id that a call with these ids looks up for each token.

    Raises:
        UnreadableError: it depends on more than the token.
    """
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
