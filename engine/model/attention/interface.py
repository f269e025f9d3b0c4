"""Our attention under a name that transformers' models can be told to call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface

from engine.api.errors import ModelError
from engine.model.attention.base import StepContext
from engine.model.attention.params import AttentionParams

ATTENTION_NAME = "batchdeck"

# Arguments that change the scores in ways that no backend here knows.
_UNSUPPORTED = ("position_bias", "sinks", "indices", "block_indices")


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
    step_context: StepContext | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Store one layer's keys and values, then attend through the block tables.

    The model's attention modules call it. The keyword `step_context` of the model's forward reaches
    it through the keyword arguments that the models hand down.

    Args:
        module: the attention module; its `layer_idx` is the layer.
        query: [1, H, T, head_dim], rotated already.
        key: [1, num_kv_heads, T, head_dim], rotated already.
        value: [1, num_kv_heads, T, value_dim].
        attention_mask: None, because no mask function is registered under our name.
        sliding_window: window of this layer, in tokens. It is taken from nowhere else, because
            configurations name windows that single layers do not use.

    Returns:
        [1, T, H, value_dim], and no attention weights.

    Raises:
        ModelError: the model does not hand down the context, or asks for something that the
            backends do not do.
    """
    if step_context is None:
        raise ModelError(f"{type(module).__name__} does not hand the step's context to attention")
    _check_supported(module, attention_mask, is_causal, kwargs)
    layer = module.layer_idx
    assert isinstance(layer, int)
    step_context.storage.write(
        layer, step_context.slots, key[0].transpose(0, 1), value[0].transpose(0, 1)
    )
    output = step_context.backend.attend(
        query[0].transpose(0, 1),
        layer,
        step_context,
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
