"""Unofficial: what is used of transformers under private names, for want of public ones.

All of it is here, so that a new version of transformers is tried against one file.
"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel


def keeps_state(model_class: type[PreTrainedModel]) -> bool:
    """Whether a class keeps a recurrent state.

    transformers tells it by no public name, and a class that hides it would be found out only when
    the gate compares logits, after its weights were read.
    """
    return bool(model_class._is_stateful)


def lets_attention_be_replaced(model_class: type[PreTrainedModel]) -> bool:
    """Whether a class promises to call attention through the attention interface.

    The public `is_backend_compatible` says it of attention's arguments. Whether the code of a class
    looks attention up at all is only asked in private, and `set_attn_implementation` merely warns.
    """
    untyped: Any = model_class
    return bool(untyped.is_backend_compatible() and untyped._can_set_attn_implementation())


def attention_in_force(model: PreTrainedModel) -> str | None:
    """Name of the attention that a model computes with.

    `set_attn_implementation` raises nothing where it changed nothing, and there is no getter.
    """
    name: str | None = model.config._attn_implementation
    return name
