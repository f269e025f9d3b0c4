"""Unofficial: the private names of transformers in use, for lack of public ones.

All are here, so that a new version of transformers affects one file.
"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel


def lets_attention_be_replaced(model_class: type[PreTrainedModel]) -> bool:
    """Whether a class looks its attention up at all.

    There is no public name for it, and if it does not, the public `set_attn_implementation` only
    warns.
    """
    untyped: Any = model_class
    return bool(untyped._can_set_attn_implementation())


def built(
    model_class: type[PreTrainedModel], config: PreTrainedConfig, **options: Any
) -> PreTrainedModel:
    """Build a model of a class, without weights or with random ones.

    The public `from_config` chooses the class itself, and only among language models.

    Args:
        options: see `from_config`.
    """
    untyped: Any = model_class
    model: PreTrainedModel = untyped._from_config(config, **options)
    return model


def disable_padding_check(model: PreTrainedModel) -> None:
    """Stop a model from checking its tokens for padding: on meta they have no values."""
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            untyped: Any = module
            untyped.warn_if_padding_and_no_attention_mask = lambda *args: None


def attention_in_force(model: PreTrainedModel) -> str | None:
    """Name of the attention that a model uses.

    `set_attn_implementation` raises nothing if it changed nothing, and there is no getter.
    """
    name: str | None = model.config.get_text_config()._attn_implementation
    return name
