"""Interface: our attention under a name that transformers' models can call."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface

from engine.api.errors import ModelError
from engine.model.attention.base import StepContext
from engine.model.attention.latent import Expansion
from engine.model.attention.params import AttentionParams

ATTENTION_NAME = "batchdeck"

Places = Mapping[int, tuple[int, int]]
Expansions = Mapping[int, Expansion]


@dataclass(frozen=True, slots=True)
class _Step:
    """The current step, as set by `computing_step`."""

    parts: Sequence[StepContext]
    places: Places | None
    expansions: Expansions
    borrowing: Collection[int]


@dataclass(frozen=True, slots=True)
class _Handed:
    """The last input of the cache, and its layer.

    A module shared by several layers has no number of its own.
    """

    layer: int
    key: Tensor
    value: Tensor


# The current step. Many models do not pass their own arguments down to attention.
_step: ContextVar[_Step] = ContextVar("step")
_handed: ContextVar[_Handed | None] = ContextVar("handed", default=None)

# Arguments that change the scores in ways that no backend supports.
_UNSUPPORTED = ("position_bias", "sinks", "indices", "block_indices")


@contextmanager
def computing_step(
    *parts: StepContext,
    places: Places | None = None,
    expansions: Expansions | None = None,
    borrowing: Collection[int] = (),
) -> Iterator[None]:
    """Use this step for the attention of models called in this context, in this thread.

    Args:
        parts: the step over each part of the pool.
        places: (part, index in it) of each attention layer, by layer number; None if there is one
            part, and all layers attend.
        expansions: expansions by layer number, of the layers that store latents.
        borrowing: numbers of the layers whose keys and values another layer has stored.
    """
    before = _step.set(_Step(parts, places, expansions or {}, borrowing))
    handed = _handed.set(None)
    try:
        yield
    finally:
        _step.reset(before)
        _handed.reset(handed)


def attends_next(layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Announce which layer's attention comes next, whatever its module's number, with the inputs of
    its cache: keys and values, or latents, [1, heads, T, size] both.

    Returns:
        the tensors with which the module continues. For latents that is one token, because the
        module's result from it is not used.
    """
    _handed.set(_Handed(layer, key, value))
    step = _step.get(None)
    if step is not None and layer in step.expansions:
        return key[:, :, :1], value[:, :, :1]
    return key, value


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Store one layer's keys and values, or its latents, then attend through the block tables.

    The model's attention modules call it during a step (`computing_step`).

    Args:
        module: the attention module; its `layer_idx` is the layer, unless `attends_next` announced
            one.
        query: [1, H, T, head_dim], already rotated.
        key: [1, num_kv_heads, T, head_dim], already rotated.
        value: [1, num_kv_heads, T, value_dim]. A layer that stores latents uses neither.
        attention_mask: None, because no mask function is registered under our name.
        sliding_window: window of this layer, in tokens. It is the only source, because
            configurations state windows that some layers do not use.

    Returns:
        [1, T, H, value_dim], and no attention weights.

    Raises:
        ModelError: the model needs something that the backends do not support.
    """
    _check_supported(module, attention_mask, is_causal, kwargs)
    step, handed = _step.get(), _handed.get()
    _handed.set(None)
    number: Any = module.layer_idx if handed is None else handed.layer
    if number is None:  # a module of several layers has none (Zamba), or -1 (Zamba 2)
        number = -1
    expansion = step.expansions.get(number)
    params = AttentionParams(
        query.shape[-1] ** -0.5 if scaling is None else scaling, sliding_window, softcap, s_aux
    )
    part, layer = (0, number) if step.places is None else step.places[number]
    context = step.parts[part]
    queries = query[0].transpose(0, 1)
    if expansion is not None:
        assert handed is not None
        latents = expansion.join(handed.key, handed.value)
        context.storage.write(layer, context.slots, latents, latents)
        attended = context.backend.attend(expansion.absorb(queries), layer, context, params)
        return expansion.release(attended).unsqueeze(0), None
    if number not in step.borrowing:
        context.storage.write(
            layer, context.slots, key[0].transpose(0, 1), value[0].transpose(0, 1)
        )
    return context.backend.attend(queries, layer, context, params).unsqueeze(0), None


def _check_supported(
    module: nn.Module,
    attention_mask: Tensor | None,
    is_causal: bool | None,
    others: Mapping[str, Any],
) -> None:
    """Raises:
    ModelError: the model needs something that the backends do not support.
    """
    if attention_mask is not None:
        raise ModelError(f"{type(module).__name__} builds an attention mask of its own")
    if is_causal is False:
        raise ModelError(f"{type(module).__name__} asks for attention that is not causal")
    for name in _UNSUPPORTED:
        if others.get(name) is not None:
            raise ModelError(f"{type(module).__name__} asks for attention with {name}")


# No mask function is registered with this name, so that transformers builds no mask.
AttentionInterface.register(ATTENTION_NAME, paged_attention)
