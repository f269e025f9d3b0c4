"""Attend: attention over the paged keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from engine.model.attention.params import AttentionParams
from engine.model.program.graph import Value, View
from engine.model.program.operations.kerneled import Kerneled
from engine.model.program.operations.norm import HeadNorm
from engine.model.program.rotation import Rotation


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
