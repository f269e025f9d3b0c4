"""Base: the step data that attention reads, and the protocol of attention backends."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from engine.cache.storage import CacheShape, KVStorage
from engine.model.attention.params import AttentionParams

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepContext:
    """The packed rows of one step. It is built once and read by every layer.

    Row r holds the `counts[r]` tokens at positions [starts[r], starts[r] + counts[r]) of one
    sequence. The packed step concatenates the rows' tokens, T in all. Rows of one token come first,
    sorted by length, so that rows of similar length are neighbours.

    Attributes:
        slots: [T] int64 on the device, the pool slot of each token's key and value.
        starts, counts: [R] int64 on the host.
        block_tables: [R, B] int64 on the host; entries past a row's own blocks are undefined.
        layouts: data that the backend derives from these, kept for later layers.
    """

    backend: AttentionBackend
    storage: KVStorage
    slots: Tensor
    starts: IntArray
    counts: IntArray
    block_tables: IntArray
    layouts: dict[Hashable, Any] = field(default_factory=dict)


class AttentionBackend(Protocol):
    """Attention of packed queries over paged keys and values."""

    @property
    def name(self) -> str:
        """Name of the backend, shown with the model."""
        ...

    def storage(self, shape: CacheShape) -> KVStorage:
        """A cache in the layout that this backend reads.

        Raises:
            ModelError: it does not support such a cache.
        """
        ...

    def attend(
        self, query: Tensor, layer: int, context: StepContext, params: AttentionParams
    ) -> Tensor:
        """Causal attention of each row over its own sequence; the step's tokens are already stored.

        Head h of the queries reads head h // (H / num_kv_heads) of the cache (GQA, arXiv
        2305.13245).

        Args:
            query: [T, H, head_dim] in the storage's dtype.

        Returns:
            [T, H, value_dim] in the query's dtype.
        """
        ...
