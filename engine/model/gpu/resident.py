"""Resident: what stays on a GPU from step to step."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.cache.storage import HeadStorage


@dataclass(slots=True)
class Resident:
    """What stays on the device from step to step, and all launches refer to.

    Attributes:
        block_tables: [rows, B] int32.
        latest: [rows] int32, the last token that was sampled for each batch index.
        storage: the pool; None until the program is attached to one.
    """

    block_tables: Tensor
    latest: Tensor
    storage: HeadStorage | None = None
    _parts: dict[tuple[int, ...], tuple[Tensor, Tensor]] = field(default_factory=dict)

    @property
    def pool(self) -> HeadStorage:
        assert self.storage is not None
        return self.storage

    def parts(self, *places: int, value_dim: int) -> tuple[Tensor, Tensor]:
        """Room for what attention leaves in parts, shared by all layers: [*places, value_dim] and
        [*places, 2] float32.
        """
        key = (*places, value_dim)
        if key not in self._parts:
            self._parts[key] = tuple(  # type: ignore[assignment]
                torch.empty(*places, size, dtype=torch.float32, device=self.latest.device)
                for size in (value_dim, 2)
            )
        return self._parts[key]
