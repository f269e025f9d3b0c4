"""Resident: the tensors that stay on a GPU from step to step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.cache.storage import HeadStorage


@dataclass(slots=True)
class Resident:
    """The tensors that stay on the device from step to step, shared by all launches.

    Attributes:
        block_tables: [rows, B] int32.
        latest: [rows] int32, the last token that was sampled for each batch index.
        pools: the parts of the pool; none until the program is attached to one.
        places: for each layer that attends, its part and its place there, as in
            `engine.cache.storage.places`.
    """

    block_tables: Tensor
    latest: Tensor
    places: Sequence[tuple[int, int]]
    pools: Sequence[HeadStorage] = ()
    _parts: dict[tuple[int, ...], tuple[Tensor, Tensor]] = field(default_factory=dict)

    @property
    def block_size(self) -> int:
        """Token slots in a block of the pool."""
        return self.pools[0].shape.block_size

    def cache(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer in the pool, as `HeadStorage` has them."""
        part, place = self.places[layer]
        return self.pools[part].keys[place], self.pools[part].values[place]

    def parts(self, *places: int, value_dim: int) -> tuple[Tensor, Tensor]:
        """Buffers for the parts of attention, shared by all layers: [*places, value_dim] and
        [*places, 2] float32.
        """
        key = (*places, value_dim)
        if key not in self._parts:
            self._parts[key] = tuple(  # type: ignore[assignment]
                torch.empty(*places, size, dtype=torch.float32, device=self.latest.device)
                for size in (value_dim, 2)
            )
        return self._parts[key]
