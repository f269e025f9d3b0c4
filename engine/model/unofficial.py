"""Unofficial: the private names of transformers that are used, for want of public ones.

All of it is here, so that a new version of transformers is tried against one file.
"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel


def keeps_state(model_class: type[PreTrainedModel]) -> bool:
    """Whether a class keeps a recurrent state.

    transformers has no public name for this. Without it, such a class would be found out only when
    the gate compares logits, after its weights were read.
    """
    return bool(model_class._is_stateful)


def lets_attention_be_replaced(model_class: type[PreTrainedModel]) -> bool:
    """Whether a class promises to call attention through the attention interface.

    The public `is_backend_compatible` tells only whether attention's arguments are handed down. A
    private method tells whether the code of a class looks attention up at all; where it does not,
    the public `set_attn_implementation` merely warns.
    """
    untyped: Any = model_class
    return bool(untyped.is_backend_compatible() and untyped._can_set_attn_implementation())


def attention_in_force(model: PreTrainedModel) -> str | None:
    """Name of the attention that a model computes with.

    `set_attn_implementation` raises nothing when it has changed nothing, and there is no getter.
    """
    name: str | None = model.config._attn_implementation
    return name
