"""Sizes: checks whether a configuration's sizes match the weights beside it.

They are checked before anything is built from them. On the meta device a matrix of any size costs
nothing, but each layer takes a millisecond and 50 kB, so that building a model with far too many
layers would never end.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.api.errors import ModelError
from engine.model.files.checkpoint import Checkpoint

# Among the default configurations of transformers 5.23's language models, hrm_text has the most
# layers (128), doge the most experts (16,384, which are rows of a table), deepseek_v4 the longest
# context (2^20 positions), and iquestcoder the widest inner layer (27,648).
_MOST_LAYERS, _MOST_EXPERTS = 1024, 1 << 14
MOST_POSITIONS = 1 << 27
# No weight need have this size: a mixture of experts may state the size of dense layers that it
# does not have.
_MOST_INNER = 1 << 24

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)|^\d+(?=\.)")


@dataclass(frozen=True, slots=True)
class _Weights:
    """The sizes that the headers of the weights show.

    Attributes:
        layers: number of different first numbers in the tensors' names.
        side: longest side of a non-empty tensor.
    """

    layers: int
    side: int


@dataclass(frozen=True, slots=True)
class _Rule:
    """The allowed values of some keys.

    Attributes:
        keys: keys of transformers' configurations.
        least: the smallest value.
        most: computes the largest value from the weights.
        why: a clause that explains the largest value.
    """

    keys: tuple[str, ...]
    least: int
    most: Callable[[_Weights], int]
    why: str


_RULES = (
    _Rule(
        ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "depth"),
        1,
        lambda weights: min(weights.layers, _MOST_LAYERS),
        f"the layers that the weights' names tell apart, and {_MOST_LAYERS:,} at most",
    ),
    _Rule(
        ("num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok"),
        0,
        lambda weights: min(weights.side, _MOST_EXPERTS),
        f"the longest side of a weight, and {_MOST_EXPERTS:,} at most",
    ),
    _Rule(
        (
            *("vocab_size", "hidden_size", "n_embd", "d_model", "head_dim"),
            *("num_attention_heads", "n_head", "n_heads", "num_key_value_heads"),
            "moe_intermediate_size",
        ),
        1,
        lambda weights: weights.side,
        "the longest side of a weight",
    ),
    _Rule(
        ("intermediate_size", "n_inner"),
        1,
        lambda weights: max(weights.side, _MOST_INNER),
        "more than any model has",
    ),
    _Rule(
        ("max_position_embeddings", "n_positions"),
        1,
        lambda weights: MOST_POSITIONS,
        "128 times the longest default of transformers",
    ),
)
_RULE_OF = {key: rule for rule in _RULES for key in rule.keys}


def check_sizes(stated: dict[str, Any], checkpoint: Checkpoint, path: Path) -> None:
    """Check the sizes of a configuration, and of nested ones, against the weights.

    Args:
        stated: the configuration as stated in the file.
        path: the file, for the message.

    Raises:
        ModelError: a size is not an integer, or out of range.
    """
    weights = _Weights(_num_layers(checkpoint), _longest_side(checkpoint))
    for name, key, value in _sizes(stated):
        rule = _RULE_OF[key]
        most = rule.most(weights)
        if type(value) is not int or not rule.least <= value <= most:
            raise ModelError(
                f"{path} is not valid: {name} is {reprlib.repr(value)}; allowed are whole numbers "
                f"from {rule.least} to {most} ({rule.why})"
            )


def check_elements(
    num_elements: int, checkpoint: Checkpoint, path: Path, packed: bool = False
) -> None:
    """Check that a configuration does not describe a model much larger than the weights.

    Missing weights are found by name while the others are read. But before that transformers fills
    them with random numbers, which takes unplanned memory.

    Args:
        num_elements: numbers in the parameters and buffers of the described model.
        path: the configuration file, for the message.
        packed: whether the weights are quantized, with two numbers in a byte.

    Raises:
        ModelError: there are more than twice as many as are stored, plus 16 M.
    """
    stored = 2 * checkpoint.num_bytes if packed else checkpoint.num_elements
    if num_elements > 2 * stored + (1 << 24):
        raise ModelError(
            f"{path} describes a model of {num_elements:,} numbers; its weights hold {stored:,}"
        )


def scaled_positions(config: Any) -> int:
    """The number of positions that scaled rotations reach, by a text model's configuration; 0 if
    nothing is scaled, or if `max_position_embeddings` counts the scaled ones.

    YaRN (arXiv 2309.00071), linear and dynamic scaling reach the trained length times their factor.
    The trained length is `original_max_position_embeddings`, or `max_position_embeddings` if that
    is not stated. If types of layers have separate rotations, as in Gemma 3, the latter is the
    whole.
    """
    parameters = getattr(config, "rope_parameters", None) or {}
    by_type = [value for value in parameters.values() if isinstance(value, dict)]
    reached = 0
    for one in by_type or [parameters]:
        trained = None if by_type else config.max_position_embeddings
        trained = one.get("original_max_position_embeddings") or trained
        factor = one.get("factor")
        if one.get("rope_type") not in ("yarn", "linear", "dynamic"):
            continue
        if isinstance(trained, int) and isinstance(factor, (int, float)) and math.isfinite(factor):
            reached = max(reached, int(trained * factor))
    return reached


def _sizes(stated: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Path, key and value of each stated size, including nested configurations."""
    pending: list[tuple[str, dict[str, Any]]] = [("", stated)]
    while pending:
        prefix, config = pending.pop()
        for key, value in config.items():
            if isinstance(value, dict):
                pending.append((f"{prefix}{key}.", value))
            elif key in _RULE_OF and value is not None:
                # Some models state one for each layer.
                for one in value if isinstance(value, list) and value else [value]:
                    yield f"{prefix}{key}", key, one


def _num_layers(checkpoint: Checkpoint) -> int:
    numbers = {found.group() for t in checkpoint.tensors if (found := _NUMBER.search(t.name))}
    return len(numbers) or len(checkpoint.tensors)


def _longest_side(checkpoint: Checkpoint) -> int:
    return max((side for t in checkpoint.tensors if t.num_bytes for side in t.shape), default=1)
