"""Our attention under a name that transformers' models can be told to call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface

from engine.api.errors import ModelError
from engine.model.attention.base import StepContext
from engine.model.attention.params import AttentionParams

ATTENTION_NAME = "batchdeck"

Places = Mapping[int, tuple[int, int]]

# The step that is computed. Many models do not hand arguments of their own down to attention.
_step: ContextVar[tuple[Sequence[StepContext], Places | None]] = ContextVar("step")

# The layer whose keys and values were handed to the cache last. A module that several layers share
# has no number of its own.
_layer: ContextVar[int | None] = ContextVar("layer", default=None)

# Arguments that change the scores in ways that no backend here knows.
_UNSUPPORTED = ("position_bias", "sinks", "indices", "block_indices")


@contextmanager
def computing_step(*parts: StepContext, places: Places | None = None) -> Iterator[None]:
    """Let the attention of models that are called meanwhile, in this thread, be of this step.

    Args:
        parts: the step over each part of the pool.
        places: the part that each layer that attends lies in, and its place there, by the number of
            the layer; None if there is one part, and all layers attend.
    """
    before, layer = _step.set((parts, places)), _layer.set(None)
    try:
        yield
    finally:
        _step.reset(before)
        _layer.reset(layer)


def attends_next(layer: int) -> None:
    """Say which layer's attention comes next, whatever number its module has."""
    _layer.set(layer)


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
    """Store one layer's keys and values, then attend through the block tables.

    The model's attention modules call it while a step is computed (`computing_step`).

    Args:
        module: the attention module; its `layer_idx` is the layer, if `attends_next` does not say.
        query: [1, H, T, head_dim], rotated already.
        key: [1, num_kv_heads, T, head_dim], rotated already.
        value: [1, num_kv_heads, T, value_dim].
        attention_mask: None, because no mask function is registered under our name.
        sliding_window: window of this layer, in tokens. It is taken from nowhere else, because
            configurations name windows that single layers do not use.

    Returns:
        [1, T, H, value_dim], and no attention weights.

    Raises:
        ModelError: the model asks for something that the backends do not do.
    """
    parts, places = _step.get()
    _check_supported(module, attention_mask, is_causal, kwargs)
    number = _layer.get()
    if number is None:
        number = getattr(module, "layer_idx", None)
    _layer.set(None)
    assert isinstance(number, int)
    part, layer = (0, number) if places is None else places[number]
    context = parts[part]
    context.storage.write(layer, context.slots, key[0].transpose(0, 1), value[0].transpose(0, 1))
    output = context.backend.attend(
        query[0].transpose(0, 1),
        layer,
        context,
        AttentionParams(
            query.shape[-1] ** -0.5 if scaling is None else scaling,
            sliding_window,
            softcap,
            s_aux,
        ),
    )
    return output.unsqueeze(0), None


def _check_supported(
    module: nn.Module,
    attention_mask: Tensor | None,
    is_causal: bool | None,
    others: Mapping[str, Any],
) -> None:
    """
    Raises:
        ModelError: the model asks for what the backends do not do.
    """
    if attention_mask is not None:
        raise ModelError(f"{type(module).__name__} builds an attention mask of its own")
    if is_causal is False:
        raise ModelError(f"{type(module).__name__} asks for attention that is not causal")
    for name in _UNSUPPORTED:
        if others.get(name) is not None:
            raise ModelError(f"{type(module).__name__} asks for attention with {name}")


# No mask function is registered with it, so that transformers builds no mask.
AttentionInterface.register(ATTENTION_NAME, paged_attention)
