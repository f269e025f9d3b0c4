"""probe: runs a few tokens to determine which of a model's modules keep states, and how."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from engine.cache.storage import KVStorage
from engine.model.attention.base import AttentionBackend, StepContext
from engine.model.attention.interface import ATTENTION_NAME, computing_step
from engine.model.attention.params import AttentionParams
from engine.model.state.cache import Sequences, StateCache
from engine.model.state.groups import gather, scatter

# Tokens of the probe, and where they are cut in two. A convolution reaches over the cut.
_NUM_TOKENS = 9
_CUT = 4
# The largest difference, as the quotient of norms, that rounding explains. A module that restarts
# is off by tenths.
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.05, torch.float16: 0.01}


@dataclass(frozen=True, slots=True)
class Probed:
    """The results of a probe.

    Attributes:
        layers: the attention layers, in order.
        restarting: classes of modules that compute a chunk as if nothing preceded it.
    """

    layers: tuple[int, ...]
    restarting: frozenset[type[nn.Module]]


def cache_argument(model: nn.Module) -> str:
    """The name of the cache argument of a model's forward pass."""
    named = inspect.signature(model.forward).parameters
    # From transformers 5.24 on it is `cache`; the others still exist in users' own models.
    names = ("cache", "past_key_values", "cache_params")
    return next((name for name in names if name in named), "past_key_values")


@torch.inference_mode()
def probe(model: PreTrainedModel, cache: StateCache) -> Probed:
    """Find the modules with states, which `cache` records.

    Attention is replaced by zeros, because only its inputs matter.
    """
    recorder = _Recorder()
    calls: dict[nn.Module, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.setdefault(module, (args, kwargs))

    model.set_attn_implementation(ATTENTION_NAME)
    hooks = [
        module.register_forward_pre_hook(note, with_kwargs=True)
        for module in model.modules()
        if not isinstance(module, PreTrainedModel)
    ]
    tokens = torch.arange(_NUM_TOKENS, device=model.device)
    vocab_size = model.config.get_text_config().vocab_size
    try:
        with computing_step(_context(recorder)), cache.watching(model):
            model(
                input_ids=((tokens * 7919 + 13) % vocab_size)[None],
                position_ids=tokens[None],
                use_cache=False,
                **{cache_argument(model): cache},
            )
    finally:
        for hook in hooks:
            hook.remove()
    restarting: set[type[nn.Module]] = set()
    seen: set[type[nn.Module]] = set()
    for module in cache.askers:
        if type(module) not in seen:
            seen.add(type(module))
            if not _goes_on(module, *calls[module], cache, model):
                restarting.add(type(module))
    return Probed(tuple(sorted(recorder.layers)), frozenset(restarting))


def _goes_on(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    cache: StateCache,
    model: PreTrainedModel,
) -> bool:
    """Whether a module computes the second part of a prompt from the state after the first one."""
    slots = torch.zeros(1, dtype=torch.int64, device=model.device)

    def output(*cuts: int) -> Tensor:
        whole: Any = None
        for first, last in zip((0, *cuts), (*cuts, _NUM_TOKENS), strict=True):
            tokens = torch.arange(first, last, device=model.device)[None]
            with cache.computing(Sequences(slots, are_new=first == 0)):
                part = module(
                    *(gather(one, tokens, _NUM_TOKENS) for one in args),
                    **{name: gather(one, tokens, _NUM_TOKENS) for name, one in kwargs.items()},
                )
            whole = scatter(whole, part, tokens, _NUM_TOKENS)
        found = whole[0] if isinstance(whole, tuple) else whole
        return cast(Tensor, found).float()

    expected, got = output(), output(_CUT)
    difference = float((got - expected).norm() / expected.norm().clamp(min=1e-30))
    return difference <= _TOLERANCE[model.dtype]


@dataclass(slots=True)
class _Recorder:
    """Stands in for storage and backend, and returns zeros."""

    layers: set[int] = field(default_factory=set)
    _value_shape: tuple[int, ...] = ()

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        self.layers.add(layer)
        self._value_shape = tuple(value.shape)

    def attend(
        self, query: Tensor, layer: int, context: StepContext, params: AttentionParams
    ) -> Tensor:
        return query.new_zeros(*query.shape[:2], self._value_shape[2])


def _context(recorder: _Recorder) -> StepContext:
    return StepContext(
        backend=cast(AttentionBackend, recorder),
        storage=cast(KVStorage, recorder),
        slots=torch.arange(_NUM_TOKENS),
        starts=np.zeros(1, np.int64),
        counts=np.full(1, _NUM_TOKENS),
        block_tables=np.zeros((1, 1), np.int64),
    )
