"""Rope: fixes rotary embeddings that otherwise depend on the longest position of a row."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from engine.api.errors import ModelError


def freeze_rope(model: PreTrainedModel, max_model_len: int) -> None:
    """Make a position's rotation depend on that position alone.

    In transformers, the largest position of a row decides whether `longrope` (LongRoPE, arXiv
    2402.13753) uses its short or its long factors, and which base `dynamic` (NTK-aware scaling)
    uses. But a packed step has many sequences in one row. Here both are chosen once, by
    `max_model_len`, as for a sequence of that length.

    Args:
        max_model_len: tokens of the longest sequence.

    Raises:
        ModelError: the rotation still depends on the row.
    """
    rotaries = [module for module in model.modules() if _kinds(module)]
    for rotary in rotaries:
        for layer_type, kind in _kinds(rotary).items():
            if kind in ("longrope", "dynamic"):
                _choose(kind, rotary, layer_type, max_model_len)
                _set_kind(rotary, layer_type, "default")
    if {"longrope", "dynamic"} & _configured_kinds(model.config.get_text_config()):
        _check_independent(model, rotaries, max_model_len)


def _choose(kind: str, rotary: Any, layer_type: str | None, max_model_len: int) -> None:
    """Set a rotation's frequencies to those of the longest sequence."""
    inv_freq = getattr(rotary, f"{layer_type}_inv_freq" if layer_type else "inv_freq")
    length: int | None = max_model_len
    if kind == "longrope":
        parameters = rotary.config.rope_parameters
        original = (parameters[layer_type] if layer_type else parameters)[
            "original_max_position_embeddings"
        ]
        # A length above the original one selects the long factors, as in the module's own forward
        # pass.
        length = original + 1 if max_model_len > original else None
    extra = {"layer_type": layer_type} if layer_type else {}
    chosen, _ = ROPE_INIT_FUNCTIONS[kind](rotary.config, inv_freq.device, seq_len=length, **extra)
    inv_freq.copy_(chosen)


def _check_independent(model: PreTrainedModel, rotaries: list[Any], max_model_len: int) -> None:
    """Check that position 1 is rotated the same alone and beside the last position.

    Raises:
        ModelError: it is not.
    """
    name = type(model).__name__
    if not rotaries:
        raise ModelError(f"{name} is not supported: its rotary embedding depends on the whole row")
    for rotary in rotaries:
        device = next(rotary.buffers()).device
        if device.type == "meta":
            return
        takes_type = "layer_type" in inspect.signature(rotary.forward).parameters
        for layer_type in _kinds(rotary):
            extra = {"layer_type": layer_type} if takes_type and layer_type else {}
            like = torch.zeros(1, device=device)
            alone = torch.tensor([[1]], device=device)
            beside = torch.tensor([[1, max(max_model_len - 1, 1)]], device=device)
            first: tuple[Tensor, Tensor] = rotary(like, alone, **extra)
            both: tuple[Tensor, Tensor] = rotary(like, beside, **extra)
            if not all(torch.equal(a[:, 0], b[:, 0]) for a, b in zip(first, both, strict=True)):
                raise ModelError(
                    f"{name} is not supported: its rotary embedding of a position depends on the "
                    "longest position in the same step"
                )


def _kinds(module: nn.Module) -> dict[str | None, str]:
    """Kind of RoPE by layer type, with None for all layers; empty for other modules."""
    kinds = getattr(module, "rope_type", None)
    if isinstance(kinds, str):
        return {None: kinds}
    return dict(kinds) if isinstance(kinds, dict) else {}


def _set_kind(rotary: Any, layer_type: str | None, kind: str) -> None:
    if layer_type is None:
        rotary.rope_type = kind
    else:
        rotary.rope_type[layer_type] = kind


def _configured_kinds(config: Any) -> set[str]:
    parameters = getattr(config, "rope_parameters", None) or {}
    by_type = [value for value in parameters.values() if isinstance(value, dict)] or [parameters]
    return {str(one.get("rope_type", "default")) for one in by_type}
