"""Miniatures: small random models of a class, for tests too expensive on a large one."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from engine.api.errors import ModelError, cause_of
from engine.batch.shape import ModelShape
from engine.model.tracing.trace import trace
from engine.model.tracing.unofficial import built

# Window of a miniature's layers with a window, and chunk size of its layers with states, in tokens.
SHORT_WINDOW, SHORT_CHUNK = 6, 16
# Sizes for free widths and vocabularies.
_WIDTH, _VOCAB_SIZE = 64, 128
# Most query numbers that share a key-value head, if two such heads make the stream this wide.
_MOST_WIDTH = 512

_WINDOWS = (
    "sliding_window",
    "sliding_window_size",
    "attention_window_size",
    "attention_chunk_size",
    "window_size",
    "local_attention",
    "index_topk",
)
_CHUNKS = ("chunk_size", "mamba_chunk_size", "block_size")
# Suffixes of keys whose values list layer numbers.
_NAMING = ("layer_indices", "layer_ids", "attn_idxs")
_VOCABULARIES = ("vocab_size", "vocab_size_per_layer_input")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
# Of Mamba 2: number of heads, their size, and their total width relative to the stream.
_MAMBA_HEADS = (
    ("mamba_n_heads", "mamba_d_head", "mamba_expand"),
    ("mamba_num_heads", "mamba_head_dim", "expand"),
    ("n_mamba_heads", "mamba_headdim", "mamba_expand"),
    ("num_heads", "head_dim", "expand"),
)
_STATES = ("mamba_d_state", "ssm_state_size", "state_size")
_MAMBA_GROUPS = ("mamba_n_groups", "n_groups", "mamba_ngroups")


def miniature(
    model_class: type[PreTrainedModel],
    original: PreTrainedConfig,
    shape: ModelShape,
    device: torch.device,
    seed: int = 0,
) -> tuple[PreTrainedModel, ModelShape]:
    """Make a small random float32 model of a class, with the attention and states of a given one.

    It has a layer of each kind, heads of the same size, and short windows. Each reduction is
    skipped if the class does not allow it, so that this code need not know how sizes of a class
    depend on each other.

    Args:
        original: the given model's configuration.
        shape: the given model's shape.

    Raises:
        ModelError: there is no such model.
    """
    try:
        config, small_shape = _smallest(model_class, original, shape)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            small = _built(model_class, config, device)
    except Exception as error:
        raise ModelError(
            f"{model_class.__name__} is not supported: no small model of its class can be built "
            f"to test it ({cause_of(error)})"
        ) from error
    return small.eval(), small_shape  # type: ignore[no-untyped-call]


def _built(
    model_class: type[PreTrainedModel], config: PreTrainedConfig, device: torch.device
) -> PreTrainedModel:
    """Build a random model. One with several parts is first built without memory, because its class
    drops towers that are not small. Values that only a module's constructor sets are then zero.
    """
    if config.get_text_config() is config:
        with device:
            return built(model_class, config, dtype=torch.float32)
    with torch.device("meta"):
        small: Any = built(model_class, config, dtype=torch.float32)
    small = small.to_empty(device=device)
    for tensor in (*small.parameters(), *small.buffers()):
        tensor.detach().zero_()
    small.init_weights()
    return small  # type: ignore[no-any-return]


def _smallest(
    model_class: type[PreTrainedModel], original: PreTrainedConfig, shape: ModelShape
) -> tuple[PreTrainedConfig, ModelShape]:
    """The smallest configuration like the original, and its model's traced shape.

    Raises:
        Exception: whatever transformers raised for the last attempt.
    """
    failure: Exception | None = None
    for few in _with_few_layers(original):
        found, kept = None, _CHANGES
        try:
            found = _traced(model_class, few, kept, shape)
        except Exception:
            kept = ()
            for change in (None, *_CHANGES):
                tried = kept if change is None else (*kept, change)
                try:
                    found = _traced(model_class, few, tried, shape)
                except Exception as error:
                    failure = error
                    if change is None:
                        break
                else:
                    kept = tried
        if found is not None:
            return found
    assert failure is not None
    raise failure


def _traced(
    model_class: type[PreTrainedModel],
    few: PreTrainedConfig,
    changes: Sequence[Callable[[Any], None]],
    like: ModelShape,
) -> tuple[PreTrainedConfig, ModelShape]:
    """A changed configuration, and its model's traced shape.

    Raises:
        ValueError: it attends, or keeps states, differently from the original.
        Exception: whatever transformers raises for an inconsistent configuration.
    """
    config = copy.deepcopy(few)
    for change in changes:
        change(config.get_text_config())
    shape = trace(model_class, config, torch.float32, latents=like.has_latents).shape
    if _manner(shape) != _manner(like):
        raise ValueError("what is made smaller attends in another way")
    return config, shape


def _manner(shape: ModelShape) -> object:
    """How a model attends and keeps states, independent of size."""
    return (
        {window is None for window in shape.windows},
        bool(shape.state_bytes),
        bool(shape.mixed),
        shape.head_dim,
        shape.value_dim,
        shape.num_heads // shape.num_kv_heads,
    )


def _with_few_layers(original: PreTrainedConfig) -> Iterator[PreTrainedConfig]:
    """The configuration with a layer of each kind that it states, and at least two; then with its
    first layers, if it states kinds in another way.
    """
    config: Any = original.get_text_config()
    layers = config.num_hidden_layers
    stated = config.to_dict()
    lists, named, own = _by_layer(stated, layers), _named(stated), _own(stated)
    kinds = [
        (
            str(own.get(layer)),
            *(layer in layers_named for layers_named in named.values()),
            *(str(values[layer]) for values in lists.values()),
        )
        for layer in range(layers)
    ]
    chosen = [kinds.index(kind) for kind in dict.fromkeys(kinds)]
    yield _with_layers(original, (chosen * 2)[: max(2, len(chosen))])
    number = 4
    while number < layers:
        yield _with_layers(original, range(number))
        number *= 2
    yield _with_layers(original, range(layers))


def _by_layer(stated: dict[str, Any], layers: int) -> dict[str, list[Any]]:
    """Values stated for each layer."""
    return {
        key: value
        for key, value in stated.items()
        if isinstance(value, list) and len(value) == layers and not key.endswith(_NAMING)
    }


def _named(stated: dict[str, Any]) -> dict[str, list[int]]:
    """Lists of layer numbers."""
    return {
        key: value
        for key, value in stated.items()
        if isinstance(value, list) and key.endswith(_NAMING)
    }


def _own(stated: dict[str, Any]) -> dict[int, Any]:
    """Values of single layers, by layer number."""
    return {int(layer): own for layer, own in (stated.get("per_layer_config") or {}).items()}


def _with_layers(original: PreTrainedConfig, chosen: Sequence[int]) -> PreTrainedConfig:
    whole: Any = copy.deepcopy(original)
    config: Any = whole.get_text_config()
    stated = config.to_dict()
    lists, own = _by_layer(stated, config.num_hidden_layers), _own(stated)
    few: dict[str, Any] = {
        key: [values[layer] for layer in chosen] for key, values in lists.items()
    }
    for key, named in _named(stated).items():
        few[key] = [at for at, layer in enumerate(chosen) if layer in named]
    few["num_hidden_layers"] = len(chosen)
    if not own:
        for key, value in few.items():
            setattr(config, key, value)
        return whole  # type: ignore[no-any-return]
    # Layers do not share keys and values, because their numbers would change.
    few["num_kv_shared_layers"] = 0
    few["per_layer_config"] = {
        str(at): own[layer] for at, layer in enumerate(chosen) if layer in own
    }
    part = type(config).from_dict(stated | few)
    if config is whole:
        return part  # type: ignore[no-any-return]
    whole.text_config = part
    return whole  # type: ignore[no-any-return]


def _set(config: Any, keys: Sequence[str], value: int) -> None:
    """Set keys whose stated value is a number."""
    for key in keys:
        if isinstance(number := getattr(config, key, None), int) and number > 0:
            setattr(config, key, value)


def _few_tokens(config: Any) -> None:
    _set(config, _VOCABULARIES, _VOCAB_SIZE)
    if getattr(config, "pad_token_id", None) is not None:
        config.pad_token_id = 0


def _short_windows(config: Any) -> None:
    _set(config, _WINDOWS, SHORT_WINDOW)


def _short_chunks(config: Any) -> None:
    _set(config, _CHUNKS, SHORT_CHUNK)


def _few_heads(config: Any) -> None:
    """Use two key-value heads of unchanged size. Heads that differ stay."""
    heads = getattr(config, "num_attention_heads", None)
    if not heads or _own(config.to_dict()):
        return
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    groups = heads // kv_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    # If a configuration states no head size, it is the width divided by their number. Then a single
    # key-value head must do if many query heads share it.
    is_free = getattr(config, "head_dim", None) is not None
    kv_heads = min(kv_heads, 2 if is_free or groups * size <= _MOST_WIDTH else 1)
    config.num_attention_heads = kv_heads * groups
    config.num_key_value_heads = kv_heads
    config.hidden_size = size * kv_heads * groups
    ratio = (getattr(config, "linear_num_value_heads", None) or 1) // (
        getattr(config, "linear_num_key_heads", None) or 1
    )
    _set(config, ("linear_num_heads", "linear_num_key_heads"), 2)
    _set(config, ("linear_num_value_heads",), 2 * ratio)


def _narrow(config: Any) -> None:
    """Narrow the stream, if heads have a size of their own."""
    if (
        _own(config.to_dict())
        or not hasattr(config, "num_attention_heads")
        or getattr(config, "head_dim", None)
    ):
        config.hidden_size = _WIDTH


def _few_mamba_heads(config: Any) -> None:
    """Use as many heads of Mamba 2 as fit into its stream, which is narrow now."""
    for keys in _MAMBA_HEADS:
        if all(isinstance(getattr(config, key, None), int | float) for key in keys):
            heads, size, expand = (getattr(config, key) for key in keys)
            width = int(expand * config.hidden_size)
            if getattr(config, "mamba_d_ssm", None):  # which need not be as wide
                width = 2 * size
            heads = max(width // size, 1)
            setattr(config, keys[0], heads)
            setattr(config, keys[1], width // heads)
            _set(config, ("mamba_d_ssm",), width // heads * heads)
            for key in _MAMBA_GROUPS:
                if isinstance(groups := getattr(config, key, None), int):
                    setattr(config, key, math.gcd(groups, heads))
            return


def _small_states(config: Any) -> None:
    _set(config, _STATES, SHORT_CHUNK)


def _few_experts(config: Any) -> None:
    """Use twice as many experts as each token chooses, and at least two in each group."""
    chosen = getattr(config, "num_experts_per_tok", None)
    if not isinstance(chosen, int):
        return
    group = 2 * (getattr(config, "n_group", None) or 1)
    few = -(-max(2 * chosen, 4) // group) * group
    for key in _EXPERTS:
        if isinstance(number := getattr(config, key, None), int):
            setattr(config, key, min(number, few))


def _narrow_inside(config: Any) -> None:
    inner = [key for key in config.to_dict() if key.endswith("intermediate_size")]
    # Latents of queries are not cached. With DeepSeek V3's 1,536 of them and its 128 heads a small
    # model had 111 million numbers.
    _set(config, (*inner, "q_lora_rank"), _WIDTH)


def _sharpen(config: Any) -> None:
    """Spread the scores of attention by some units. At the usual 0.02 attention is close to
    uniform, and a wrong window hardly shows.
    """
    if hasattr(config, "initializer_range"):
        config.initializer_range = 1.6 * config.hidden_size**-0.5


_CHANGES: tuple[Callable[[Any], None], ...] = (
    _few_tokens,
    _short_windows,
    _short_chunks,
    _few_experts,
    _narrow_inside,
    _few_heads,
    _narrow,
    _few_mamba_heads,
    _small_states,
    _sharpen,
)
