"""Latents: finds the layers that cache latents, and the keys and values that they compute from
them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from engine.cache.storage import KVStorage
from engine.model.attention.base import AttentionBackend, StepContext
from engine.model.attention.interface import ATTENTION_NAME, computing_step
from engine.model.attention.latent import Expansion
from engine.model.attention.params import AttentionParams
from engine.model.state.cache import StateCache
from engine.model.state.probe import cache_argument
from engine.model.state.slots import StateSlots

# Number of random latents beside the unit ones, to test whether the expansion is linear, and the
# largest difference, as the quotient of norms, that rounding explains.
_NUM_RANDOM = 3
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.03, torch.float16: 4e-3}


class ExpansionError(Exception):
    """A layer's computation from latents does not match `Expansion`. The model has lost weights and
    cannot be used any more.
    """


class Sizes(NamedTuple):
    """Heads, and sizes for one token: of a key and a value, or of a latent's two parts."""

    heads: int
    key: int
    value: int


def are_latents(handed: Sizes, attended: Sizes, num_heads: int) -> bool:
    """Whether a layer that passes `handed` to its cache and `attended` to attention stores latents.

    Keys that are merely repeated for all heads are not latents.
    """
    shared = handed.heads == 1 and attended.heads == num_heads > 1
    return shared and handed[1:] != attended[1:] and handed.value < attended.key


class NotingCache(StateCache):
    """Records the sizes of the tensors that it receives.

    Attributes:
        sizes: sizes by layer number.
    """

    def __init__(self, slots: StateSlots) -> None:
        super().__init__(slots)
        self.sizes: dict[int, Sizes] = {}

    def update(
        self, key: Tensor, value: Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        self.sizes[layer] = Sizes(key.shape[1], key.shape[3], value.shape[3])
        return super().update(key, value, layer)


@torch.inference_mode()
def extract_expansions(model: PreTrainedModel) -> dict[int, Expansion]:
    """Determine what layers compute from latents, and disable that computation.

    One token runs. Each layer gets one unit latent for each dimension in place of its own, which
    yields the matrices of its expansion. The modules that compute the expansion do nothing from now
    on, and their weights, of which the matrices are copies, are freed.

    Returns:
        the expansions of all layers that store latents, by layer number.

    Raises:
        ExpansionError: a layer's computation is of another kind.
    """
    model.set_attn_implementation(ATTENTION_NAME)
    cache = _UnitCache()
    token = torch.zeros(1, 1, dtype=torch.int64, device=model.device)
    with computing_step(_context(cache)), cache.watching_leaves(model):
        model(
            input_ids=token,
            position_ids=token,
            use_cache=False,
            **{cache_argument(model): cache},
        )
    return cache.expansions


class _UnitCache(NotingCache):
    """Returns unit latents, and receives their expansion in place of storage and backend."""

    def __init__(self) -> None:
        super().__init__(StateSlots(0))
        self.expansions: dict[int, Expansion] = {}
        self._latents: _Latents | None = None  # passed out, and not yet back
        self._came: tuple[Tensor, Tensor] | None = None
        self._computing: dict[nn.Module, int] = {}

    def update(
        self, key: Tensor, value: Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        super().update(key, value, layer)
        if self.sizes[layer].heads > 1:
            return key, value
        self._latents = _Latents.units(key, value)
        return self._latents.first, self._latents.second

    @contextmanager
    def watching_leaves(self, model: nn.Module) -> Iterator[None]:
        """Record the modules that compute something from the latents."""

        def note(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
            given = arguments[0] if arguments else None
            if self._latents is None or not isinstance(given, Tensor):
                return
            is_latent = given.data_ptr() == self._latents.first.data_ptr()
            if is_latent and given.shape[:-1] == output.shape[:-1]:
                self._computing[module] = output.shape[-1]

        hooks = [
            module.register_forward_hook(note)
            for module in model.modules()
            if next(module.children(), None) is None
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        self._came = key, value

    def attend(
        self, query: Tensor, layer: int, context: StepContext, params: AttentionParams
    ) -> Tensor:
        assert self._came is not None
        key, value = self._came
        latents, self._latents = self._latents, None
        attended = Sizes(key.shape[1], key.shape[2], value.shape[2])
        if latents is not None and are_latents(self.sizes[layer], attended, query.shape[1]):
            found = _expansion(latents, key, value)
            if found is None:
                raise ExpansionError(f"layer {layer} does not make keys and values linearly")
            self.expansions[layer] = found
            for module, width in self._computing.items():
                _spare(module, width)
        self._computing.clear()
        return query.new_zeros(*query.shape[:2], value.shape[2])


class _Latents(NamedTuple):
    """Probe latents: unit ones, then one of zeros, then random ones.

    Attributes:
        first, second: their two parts, [1, 1, N, C] and [1, 1, N, R].
    """

    first: Tensor
    second: Tensor

    @classmethod
    def units(cls, key: Tensor, value: Tensor) -> _Latents:
        """Make probe latents of the same sizes as those passed to the cache."""
        sizes = [key.shape[3], value.shape[3]]
        units = torch.eye(sum(sizes), dtype=key.dtype, device=key.device)
        zeros = units.new_zeros(1, sum(sizes))
        generator = torch.Generator().manual_seed(0)
        at_random = torch.randn(_NUM_RANDOM, sum(sizes), generator=generator).to(units)
        latents = torch.cat((units, zeros, at_random))[None, None]
        first, second = torch.split(latents, sizes, dim=3)
        return cls(first.contiguous(), second.contiguous())


def _expansion(latents: _Latents, key: Tensor, value: Tensor) -> Expansion | None:
    """The expansion of latents to these keys and values; None if it is not an `Expansion`.

    Args:
        key, value: [N, H, head_dim] and [N, H, value_dim].
    """
    c, r = latents.first[0, 0], latents.second[0, 0]
    first, second, size = c.shape[1], r.shape[1], key.shape[2]
    zeros = first + second
    is_of_latents = len(key) == len(value) == len(c) and size > second
    if not is_of_latents or key[zeros].any() or value[first : zeros + 1].any():
        return None
    content, position = key.tensor_split([size - second], dim=2)
    if not torch.equal(position, r[:, None].expand_as(position)):
        return None
    found = Expansion(
        content[:first].permute(1, 2, 0).contiguous(), value[:first].permute(1, 2, 0).contiguous()
    )
    pairs = [(content, found.keys), (value, found.values)]
    exact = all(_are_close(got, torch.einsum("nc,hdc->nhd", c, by)) for got, by in pairs)
    return found if exact else None


def _are_close(got: Tensor, expected: Tensor) -> bool:
    """Whether the two differ by rounding only."""
    difference, size = ((x.float().norm()) for x in (got - expected, expected))
    return bool(difference <= _TOLERANCE[got.dtype] * size)


def _spare(module: nn.Module, width: int) -> None:
    """Make a module return undefined numbers, and free its weights."""

    def forward(latents: Tensor) -> Tensor:
        return latents.new_empty(*latents.shape[:-1], width)

    module.forward = forward
    for parameter in module.parameters():
        parameter.data = parameter.data.new_empty(0)


def _context(cache: _UnitCache) -> StepContext:
    nothing = np.zeros(0, np.int64)
    return StepContext(
        backend=cast(AttentionBackend, cache),
        storage=cast(KVStorage, cache),
        slots=torch.zeros(1, dtype=torch.int64),
        starts=nothing,
        counts=nothing,
        block_tables=nothing,
    )
