"""Rotary embeddings (RoFormer, arXiv 2104.09864): models' layouts of pairs and tables, and which of
these a recorded pass has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from engine.model.program.agree import agree
from engine.model.program.capture import NUM_TOKENS, Call, tensors_in
from engine.model.program.graph import Value, View
from engine.model.program.layout import axes_of
from engine.model.program.provenance import Provenance, address_of
from engine.model.program.unreadable import UnreadableError, unreadable


@dataclass(frozen=True, slots=True)
class Rotation:
    """RoPE by tables.

    Attributes:
        cos, sin: [positions, half] float32.
        interleaved: whether columns (2 i, 2 i + 1) make a pair, rather than (i, i + half).
        begin: the first rotated column of a head.
    """

    cos: Tensor
    sin: Tensor
    interleaved: bool
    begin: int = 0


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, begin: int = 0) -> Tensor:
    """Rotate 2 * half columns of each head.

    Args:
        x: [T, heads, head_dim].
        cos, sin: [T, half].
        interleaved: whether columns (2 i, 2 i + 1) make a pair, rather than (i, i + half).
        begin: the first rotated column.
    """
    half = cos.shape[1]
    cos, sin = cos[:, None], sin[:, None]
    before, turned, rest = x.tensor_split([begin, begin + 2 * half], dim=-1)
    if interleaved:
        a, b = turned[..., ::2], turned[..., 1::2]
        turned = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
    else:
        a, b = turned[..., :half], turned[..., half:]
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    return torch.cat((before, turned, rest), dim=-1)


def conventions(width: int, head_dim: int) -> Iterator[tuple[slice, bool, int]]:
    """The possible layouts of models.

    Args:
        width: columns of the tables.

    Yields:
        the columns of the tables with one number for each pair; whether pairs are interleaved; and
            the sign of the angle (NanoChat rotates the other way).
    """
    picks = [slice(0, width)] if 2 * width <= head_dim else []
    if width % 2 == 0:
        picks += [slice(0, width // 2), slice(0, None, 2)]
    for sign in (1, -1):
        for pick in picks:
            for interleaved in (False, True):
                yield pick, interleaved, sign


class Rotations:
    """Determines the rotation of a recorded pass's queries and keys, by trying.

    Args:
        provenance: provenance of the pass's tensors read so far.
        positions: positions of the pass's tokens, [T].
        max_positions: length of the tables.
    """

    def __init__(self, provenance: Provenance, positions: Tensor, max_positions: int) -> None:
        self._provenance = provenance
        self._positions = positions
        self._max_positions = max_positions
        self._tables: dict[tuple[int | None, ...], tuple[Tensor, Tensor]] = {}
        self._scaled: list[tuple[tuple[Tensor, Tensor], Tensor, tuple[Tensor, Tensor]]] = []

    def of(self, tensor: Tensor, begin: int = 0) -> tuple[View, Rotation | None]:
        """The source of a query or key, [T, heads, head_dim], before its rotation, and the
        rotation.

        Args:
            begin: the first column of a head that may be rotated.
        """
        if address_of(tensor) in self._provenance.values:
            return self._provenance.view(tensor), None
        # Some models cast before rotating, and cast the same numbers twice.
        for through_casts in (False, True):
            sources, makers = self._provenance.sources(tensor, through_casts)
            read = [self._provenance.values[address_of(source)] for source in sources]
            values = {id(value): value for value in read}
            if len(values) == 1:
                break
        if len(values) != 1 or len(makers) != 1:
            # A module that makes no tables has made what is rotated.
            for call in makers.values():
                for made in tensors_in(call.output):
                    failure = self._provenance.failures.get(address_of(made))
                    if failure is not None and not _are_tables(call.output):
                        raise failure
            raise self._provenance.failures[address_of(tensor)]
        (value,), (maker,) = values.values(), makers.values()
        sources = [torch.view_as_real(t).flatten(-2) if t.is_complex() else t for t in sources]
        column = min(
            int(t.storage_offset() - value.reference.storage_offset()) % value.width
            for t in sources
        )
        heads, dim = tensor.shape[1:]
        step = _step_of_heads(sources, value, heads) or dim
        if column + (heads - 1) * step + dim > value.width:
            raise self._provenance.failures[address_of(tensor)]
        view = View(value, column, heads * dim)
        if step != dim:  # each head's query, key and value are adjacent
            sides, steps = (NUM_TOKENS, heads, dim), (value.width, step, 1)
            first = int(value.reference.storage_offset()) + column
            view = self._provenance.view(value.reference.as_strided(sides, steps, first))
        x = view.reference.reshape(NUM_TOKENS, heads, dim).double()
        recorded = [
            rows.double()
            for table in _tables_in(maker.output)
            if (rows := _rows(table, NUM_TOKENS)) is not None
        ]
        # GPT-J's tables begin with the sines.
        for order in ((0, 1), (1, 0)) if len(recorded) == 2 else ():
            cosines, sines = (recorded[at] for at in order)
            for pick, interleaved, sign in conventions(cosines.shape[1], dim - begin):
                cos, sin = cosines[:, pick], sign * sines[:, pick]
                rotated = rotate(x, cos, sin, interleaved, begin)
                if agree(rotated, tensor):
                    tables = self._tables_of(maker, order, pick, sign)
                    return view, Rotation(*tables, interleaved, begin)
                scale = self._scale_of(tensor, rotated) if 2 * cos.shape[1] == dim else None
                if scale is not None:
                    tables = self._scaled_by(self._tables_of(maker, order, pick, sign), scale)
                    return view, Rotation(*tables, interleaved)
                # DeepSeek pairs neighbours, and puts the first ones of all pairs first.
                apart = _pairs_apart(dim, begin, 2 * cos.shape[1])
                if agree(rotate(x[..., apart], cos, sin, False, begin), tensor):
                    columns = torch.arange(heads)[:, None] * dim + apart
                    view = self._provenance.picked(view, columns.flatten())
                    tables = self._tables_of(maker, order, pick, sign)
                    return view, Rotation(*tables, False, begin)
        failure = self._provenance.failures[address_of(tensor)]
        if maker.target in failure.scope:  # all but the rotation was read
            raise UnreadableError("a query or key is not a rotation by its position")
        raise failure

    def _scale_of(self, tensor: Tensor, rotated: Tensor) -> Tensor | None:
        """The factor of each position for queries after their rotation, [positions]: Llama 4 and
        Ministral 3 sharpen attention in long contexts. None if there is no such factor.

        Args:
            tensor: a recorded query.
            rotated: the same, before scaling.
        """
        call = self._provenance.makers.get(address_of(tensor))
        for given in [] if call is None else tensors_in(call.args):
            of_tokens = given.numel() == NUM_TOKENS and given.is_floating_point()
            if of_tokens and agree(rotated * given.double().reshape(-1, 1, 1), tensor):
                return self._everywhere(given).float()
        return None

    def _scaled_by(self, tables: tuple[Tensor, Tensor], scale: Tensor) -> tuple[Tensor, Tensor]:
        """Tables times a number for each position; shared by all layers."""
        for plain, known, scaled in self._scaled:
            if plain is tables and torch.equal(known, scale):
                return scaled
        cos, sin = (table * scale[:, None] for table in tables)
        self._scaled.append((tables, scale, (cos, sin)))
        return cos, sin

    def _everywhere(self, tensor: Tensor) -> Tensor:
        """Compute a number that depends only on a token's position for all positions: [positions].

        Raises:
            UnreadableError: it depends on something else.
        """
        if tensor.numel() == NUM_TOKENS and torch.equal(tensor.flatten(), self._positions):
            return torch.arange(self._max_positions, device=tensor.device)
        call = self._provenance.makers.get(address_of(tensor))

        def moved(value: Any) -> Any:
            if isinstance(value, Tensor) and value.numel() == NUM_TOKENS:
                return self._everywhere(value)
            return value

        made = None
        if call is not None and not isinstance(call.target, nn.Module) and callable(call.target):
            named = {name: moved(value) for name, value in call.kwargs.items()}
            made = call.target(*map(moved, call.args), **named)
        if not isinstance(made, Tensor) or made.numel() != self._max_positions:
            raise UnreadableError("a scale of queries depends on more than their positions")
        return made.flatten()

    def _tables_of(
        self, call: Call, order: tuple[int, int], pick: slice, sign: int
    ) -> tuple[Tensor, Tensor]:
        """Cosines and sines of all positions, from the module that made those of the pass; computed
        once for all layers that use it.
        """
        key = id(call), *order, pick.start, pick.stop, pick.step, sign
        if key not in self._tables:
            everywhere = torch.arange(self._max_positions)

            def moved(value: Any) -> Any:
                if isinstance(value, Tensor):
                    if value.is_floating_point():
                        return value.float()  # determines the type of the tables
                    if value.shape[-1:] == (NUM_TOKENS,):
                        return everywhere.to(value.device).expand(*value.shape[:-1], -1)
                return value

            assert isinstance(call.target, nn.Module)
            named = {name: moved(value) for name, value in call.kwargs.items()}
            made = _tables_in(call.target(*map(moved, call.args), **named))
            cos, sin = (_rows(made[at], self._max_positions) for at in order)
            if cos is None or sin is None:
                raise unreadable(call, "gives no row for each position")
            self._tables[key] = (
                cos[:, pick].float().contiguous(),
                (sign * sin[:, pick].float()).contiguous(),
            )
        return self._tables[key]


def _step_of_heads(sources: list[Tensor], value: Value, heads: int) -> int | None:
    """Distance of heads in the rows of the value that they come from; None if unknown."""
    for source in sources:
        axes = axes_of(source, NUM_TOKENS, value.width) or []
        for axis in axes:
            if not axis.is_token and axis.size == heads and axis.stride > 1:
                return axis.stride
    return None


def _pairs_apart(dim: int, begin: int, count: int) -> Tensor:
    """Columns of a head, [dim], with the second ones of `count` columns in neighbouring pairs, from
    `begin` on, moved after the first ones.
    """
    order = torch.arange(dim)
    order[begin : begin + count] = begin + torch.arange(count).view(-1, 2).t().flatten()
    return order


def _tables_in(output: Any) -> list[Tensor]:
    """Cosines and sines, as two tensors if they are the parts of complex numbers."""
    found = tensors_in(output)
    return [
        part for one in found for part in ((one.real, one.imag) if one.is_complex() else (one,))
    ]


def _are_tables(output: Any) -> bool:
    return all(_rows(one, NUM_TOKENS) is not None for one in _tables_in(output))


def _rows(table: Tensor, count: int) -> Tensor | None:
    """A table's row for each position, [count, columns]; None if it has none.

    Models of images have a table for each axis of a position (M-RoPE, arXiv 2409.12191). In text
    all axes are the same.
    """
    columns = table.shape[-1]
    if table.numel() % (count * columns):
        return None
    first, *others = table.reshape(-1, count, columns)
    return first if all(torch.equal(first, other) for other in others) else None
