"""Unofficial: the private names of transformers that are used, for want of public ones.

All of it is here, so that a new version of transformers is tried against one file.
"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel


def lets_attention_be_replaced(model_class: type[PreTrainedModel]) -> bool:
    """Whether the code of a class looks attention up at all.

    There is no public name for it, and where it does not, the public `set_attn_implementation`
    merely warns.
    """
    untyped: Any = model_class
    return bool(untyped._can_set_attn_implementation())


def built(
    model_class: type[PreTrainedModel], config: PreTrainedConfig, **options: Any
) -> PreTrainedModel:
    """A model of a class, without weights or with random ones.

    The public `from_config` chooses the class by itself, and among language models only.

    Args:
        options: as `from_config` takes them.
    """
    untyped: Any = model_class
    model: PreTrainedModel = untyped._from_config(config, **options)
    return model


def look_for_no_padding(model: PreTrainedModel) -> None:
    """Let a model not look for padding among its tokens, to warn: on meta they have no values."""
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            untyped: Any = module
            untyped.warn_if_padding_and_no_attention_mask = lambda *args: None


def attention_in_force(model: PreTrainedModel) -> str | None:
    """Name of the attention that a model computes with.

    `set_attn_implementation` raises nothing when it has changed nothing, and there is no getter.
    """
    name: str | None = model.config.get_text_config()._attn_implementation
    return name
