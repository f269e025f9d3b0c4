"""Attend: attention over the paged keys and values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor, nn

from engine.model.attention.params import AttentionParams
from engine.model.program.capture import NUM_TOKENS, AttentionCall, Call
from engine.model.program.graph import Operation, Value, View
from engine.model.program.operations.kerneled import Emitter, Kerneled, Numbers, TorchStep, wide
from engine.model.program.operations.norm import HeadNorm, norm_of, normal
from engine.model.program.pack import Product
from engine.model.program.provenance import address_of
from engine.model.program.reading import Reading
from engine.model.program.rotation import Rotation, rotate
from engine.model.program.unreadable import UnreadableError


@dataclass(eq=False)
class Attend(Kerneled):
    """Rotate queries and keys, norm them if required, store keys and values, attend.

    Attributes:
        layer: the layer whose keys and values it attends to.
        key, value: stored there; None if an earlier operation stores them, whose layer this one
            shares (cross-layer attention, arXiv 2405.12981). There is no value if it is the first
            part of the key (`engine.model.attention.latent`).
        rotated: [tokens, columns] each, the recorded query after rotation and norm, and the key if
            it stores one.
        params: parameters of the layer; sinks are in float32.
    """

    parts: ClassVar[tuple[type, ...]] = (AttentionParams, HeadNorm, Rotation)
    out: Value
    layer: int
    query: View
    key: View | None
    value: View | None
    heads: int
    kv_heads: int
    query_rotation: Rotation | None
    key_rotation: Rotation | None
    rotated: tuple[Tensor, ...]
    params: AttentionParams
    query_norm: HeadNorm | None = None
    key_norm: HeadNorm | None = None

    def changes(self) -> list[tuple[View, Tensor]]:
        """See `Operation.changes`."""
        views = [view for view in (self.query, self.key) if view is not None]
        return list(zip(views, self.rotated, strict=True))

    def emit(self, to: Emitter, *products: Product) -> None:
        """See `Kerneled.emit`."""
        program, place = to.program, to.place
        query = place(self.query)
        key, value = (one and place(one) for one in (self.key, self.value))
        # They are rotated and normed in place, because only attention reads them
        # (`engine.model.program.fuse` ensures that).
        for part, heads, rotation, by in (
            (query, self.heads, self.query_rotation, self.query_norm),
            (key, self.kv_heads, self.key_rotation, self.key_norm),
        ):
            if part is not None and rotation is not None:
                program.rotate(
                    part, heads, rotation.cos, rotation.sin, rotation.interleaved, rotation.begin
                )
            if part is not None and by is not None:
                program.norm(part, part, heads, by.weight, by.bias, by.eps, by.center)
        to.changed = len(program)
        if key is not None:
            program.store(self.layer, key, value)
        params = self.params
        program.attend(
            out=to.place_of(self.out),
            query=query,
            layer=self.layer,
            heads=self.heads,
            scaling=params.scaling,
            window=params.window or 0,
            softcap=params.softcap or 0.0,
            sinks=params.sinks,
        )

    def run(self, of: Numbers, step: TorchStep) -> Tensor:
        """See `Kerneled.run`."""
        context, place = step.cache(self.layer)
        positions, value = step.positions, self.value
        if self.key is not None:
            key = split_heads(
                of(self.key), self.kv_heads, self.key_rotation, self.key_norm, positions
            )
            values = key if value is None else split_heads(of(value), self.kv_heads)
            context.storage.write(place, context.slots, key, values)
        query = split_heads(
            of(self.query), self.heads, self.query_rotation, self.query_norm, positions
        )
        return context.backend.attend(query, place, context, self.params).flatten(1)


def split_heads(
    x: Tensor,
    count: int,
    rotation: Rotation | None = None,
    normed: HeadNorm | None = None,
    positions: Tensor | None = None,
) -> Tensor:
    """[T, heads, size], rotated and normed."""
    split = x.reshape(len(x), count, -1)
    if rotation is not None:
        turned = rotate(
            wide(split),
            rotation.cos[positions],
            rotation.sin[positions],
            rotation.interleaved,
            rotation.begin,
        )
        split = turned.to(x.dtype)
    return split if normed is None else normal(wide(split), normed).to(x.dtype)


def read_attend(reading: Reading, call: Call, output: Tensor, out: Value) -> list[Operation] | None:
    """A call of attention, with the rotations and norms before it."""
    given = call.target
    if not isinstance(given, AttentionCall):
        return None
    query, query_rotation, query_norm = _normed(reading, given.query)
    memory = tuple(
        (address_of(one), one.storage_offset(), one.stride()) for one in (given.key, given.value)
    )
    layer = reading.stored.setdefault(memory, given.layer)
    key = value = key_rotation = key_norm = None
    rotated = [given.query]
    if layer == given.layer:
        key, key_rotation, key_norm = _normed(reading, given.key)
        if id(key.value) not in reading.latents:
            value = reading.provenance.view(given.value)
        rotated.append(given.key)
    sinks = given.params.sinks
    if sinks is not None:
        sinks = sinks.detach().float().contiguous()
    return [
        Attend(
            out,
            layer,
            query,
            key,
            value,
            given.query.shape[1],
            given.key.shape[1],
            query_rotation,
            key_rotation,
            tuple(one.reshape(NUM_TOKENS, -1) for one in rotated),
            replace(given.params, sinks=sinks),
            query_norm,
            key_norm,
        )
    ]


def _normed(reading: Reading, tensor: Tensor) -> tuple[View, Rotation | None, HeadNorm | None]:
    """The source of a query or key before its rotation and optional norm, with these."""
    try:
        return *_rotated(reading, tensor), None
    except UnreadableError:
        call = reading.provenance.makers.get(address_of(tensor))
        given = [] if call is None else call.inputs
        if call is None or not isinstance(call.target, nn.Module) or len(given) != 1:
            raise
        # Its layout is that of the norm's result.
        rotated = given[0].as_strided(tensor.shape, tensor.stride(), given[0].storage_offset())
        rows = [Value(one.reshape(NUM_TOKENS, -1), False) for one in (rotated, tensor)]
        size = tensor.shape[-1]
        found = norm_of(call.target, View(rows[0], 0, rows[0].width), rows[1], size)
        alike = given[0].stride() == call.output.stride()
        if not alike or found is None or rows[0].width != size * found.groups:
            raise
        view, rotation = _rotated(reading, rotated)
        return view, rotation, HeadNorm(found.weight, found.bias, found.eps, found.center)


def _rotated(reading: Reading, tensor: Tensor) -> tuple[View, Rotation | None]:
    """As `Rotations.of`, also for queries and keys of latents."""
    value = reading.provenance.values.get(address_of(tensor))
    if value is not None and id(value) in reading.latents:
        return View(value, 0, value.width), reading.latents[id(value)]
    return reading.rotations.of(tensor)
