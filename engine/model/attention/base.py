"""What attention needs to know of a step, and what an attention backend must do."""

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
    sequence. The packed step is the rows' tokens one after another, T in all. Rows of one token
    come first, sorted by length, so that rows of similar length are neighbours.

    Attributes:
        slots: [T] int64 on the device, where each token's key and value go.
        starts, counts: [R] int64 on the host.
        block_tables: [R, B] int64 on the host; entries past a row's own blocks are undefined.
        layouts: what the backend derives from these, kept for the layers that follow.
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
        """Name of the backend, as it is shown beside the model."""
        ...

    def storage(self, shape: CacheShape) -> KVStorage:
        """A cache in the layout that this backend reads.

        Raises:
            ModelError: it cannot serve such a cache.
        """
        ...

    def attend(
        self, query: Tensor, layer: int, context: StepContext, params: AttentionParams
    ) -> Tensor:
        """Causal attention of each row over its own sequence; the step's tokens are stored already.

        Head h of the queries reads head h // (H / num_kv_heads) of the cache (GQA, arXiv
        2305.13245).

        Args:
            query: [T, H, head_dim] in the storage's dtype.

        Returns:
            [T, H, value_dim] in the query's dtype.
        """
        ...
