"""capture: records one forward pass of a model, call by call, with all results."""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from engine.api.config import EngineConfig
from engine.batch.shape import ModelShape
from engine.cache.storage import KVStorage, cache_shapes, places
from engine.model.attention.base import AttentionBackend, StepContext
from engine.model.attention.interface import ATTENTION_NAME, Expansions, computing_step
from engine.model.attention.latent import Expansion
from engine.model.attention.params import AttentionParams
from engine.model.attention.torch_backend import TorchAttention
from engine.model.program.layout import by_token
from engine.model.program.writes import Change, Writes, out_of_place
from engine.model.state.cache import StateCache
from engine.model.state.modules import StateModules
from engine.model.state.probe import cache_argument
from engine.model.state.slots import StateSlots

# Tokens of the recorded pass, and how many of them sample. Neither should equal a width of a model
# by chance, because axes are distinguished by size.
NUM_TOKENS = 23
NUM_SAMPLES = 7


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """A call of attention: its parameters and tensors.

    Attributes:
        query: [T, heads, head_dim].
        key: [T, kv_heads, head_dim].
        value: [T, kv_heads, value_dim].
    """

    layer: int
    query: Tensor
    key: Tensor
    value: Tensor
    params: AttentionParams


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A call of a function by which a module with states computes over a sequence.

    Attributes:
        function: its name.
        arguments: arguments by the function's own names.
    """

    function: str
    arguments: dict[str, Any]


class Site(NamedTuple):
    """Where a model makes a call: the same in all layers of a kind.

    Attributes:
        within: the class of the module that makes it.
        at: how many calls of the same name that module has made before.
    """

    within: type[nn.Module]
    name: str
    at: int


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the pass.

    Attributes:
        target: a module without submodules, a module of an opaque class, a function of torch, or a
            call of attention or of a kernel.
        scope: the modules in whose forward passes the call was made, outermost first. If it calls a
            module, that one is the last.
        changed: the arguments that it wrote to.
        site: None for a call of attention or of a kernel, and of the model itself.
    """

    target: nn.Module | Callable[..., Any] | AttentionCall | KernelCall
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any
    scope: tuple[nn.Module, ...]
    changed: tuple[Change, ...]
    site: Site | None = None

    @property
    def name(self) -> str:
        if isinstance(self.target, KernelCall):
            return self.target.function
        return name_of(self.target)

    @property
    def function(self) -> str:
        """The function of torch that it calls: `mul` for `mul_`. Empty for any other call."""
        if isinstance(self.target, (nn.Module, AttentionCall, KernelCall)):
            return ""
        return out_of_place(self.name)

    @property
    def inputs(self) -> list[Tensor]:
        """The tensors among its arguments."""
        return tensors_in((self.args, self.kwargs))


@dataclass(slots=True)
class Capture:
    """A recorded pass over `NUM_TOKENS` tokens of one sequence, `NUM_SAMPLES` of them sampling.

    Attributes:
        input_ids: [NUM_TOKENS].
        position_ids: [NUM_TOKENS], rising from 0 to the last served position, though attention
            treats tokens as consecutive. If all were near 0, the angle of a low frequency, or a
            scale that starts at some position, would not show.
        last_tokens: [NUM_SAMPLES], indices of the tokens that sample.
        calls: in order. All results are kept, so that no two tensors share an address.
        logits: [1, NUM_SAMPLES, vocab_size].
    """

    input_ids: Tensor
    position_ids: Tensor
    last_tokens: Tensor
    calls: list[Call]
    logits: Tensor


@torch.inference_mode(False)  # Tensors of inference mode do not count writes to them.
@torch.no_grad()
def capture(
    model: PreTrainedModel,
    shape: ModelShape,
    opaque: AbstractSet[type[nn.Module]],
    sites: AbstractSet[Site],
    max_positions: int,
    states: StateModules | None = None,
    expansions: Expansions | None = None,
    dtype: torch.dtype | None = None,
) -> Capture:
    """Run a pass and record it.

    Args:
        opaque: classes of modules whose calls are recorded as one, whatever is inside.
        sites: calls that torch is to repeat. Their results get rows for tokens.
        max_positions: number of served positions, at least `NUM_TOKENS`.
        states: the modules that keep states, if there are any. They get no states, so that their
            computation over a whole sequence is recorded.
        expansions: expansions by layer number, of the layers that store latents. Their computation
            is recorded as kernel calls.
        dtype: the type in which the program attends; None for the model's. A model that computes in
            a wider one attends to numbers that are rounded to it: the scores of Qwen2.5-Coder 0.5B
            are so large that this alone changes the output by 0.08.
    """
    tokens = torch.arange(NUM_TOKENS, device=model.device)
    inputs = recorded_inputs(shape.vocab_size, max_positions)
    input_ids, position_ids, last_tokens = (one.to(model.device) for one in inputs)
    recorder = _Recorder(opaque, sites, frozenset(() if states is None else states.found))
    layers = range(shape.num_layers) if states is None else states.layers
    reference = TorchAttention()
    one_block = EngineConfig(
        num_blocks=1,
        block_size=NUM_TOKENS,
        max_model_len=NUM_TOKENS,
        dtype=str(model.dtype).removeprefix("torch."),
        device=str(model.device),
    )
    found = dict(enumerate(places(shape)))
    # Attention gets the layer's index among attention layers, not its place in a part.
    turns = _Turns({layer: (found[at][0], at) for at, layer in enumerate(layers)})
    attentions = [
        _RecordedAttention(
            reference.storage(part), found, recorder, reference, turns, dtype or model.dtype
        )
        for part in cache_shapes(one_block, shape)
    ]
    contexts = [
        StepContext(
            backend=cast(AttentionBackend, attention),
            storage=cast(KVStorage, attention),
            slots=tokens,
            starts=np.zeros(1, np.int64),
            counts=np.full(1, NUM_TOKENS, np.int64),
            block_tables=np.zeros((1, 1), np.int64),
        )
        for attention in attentions
    ]
    model.set_attn_implementation(ATTENTION_NAME)
    expansions = expansions or {}
    # Latents are recognised by what the cache receives.
    cache = {cache_argument(model): StateCache(StateSlots(0))} if expansions else {}
    watched = {layer: _RecordedExpansion(one, recorder) for layer, one in expansions.items()}
    step = computing_step(*contexts, places=turns, expansions=cast(Expansions, watched))
    keeping = () if states is None else states.found
    with step, _without_cache(keeping), recorder.watching(model), recorder:
        output = model(
            input_ids=input_ids[None],
            position_ids=position_ids[None],
            use_cache=False,
            logits_to_keep=last_tokens,
            **cache,
        )
    return Capture(input_ids, position_ids, last_tokens, recorder.calls, output.logits)


@contextmanager
def _without_cache(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Hand these modules no cache, so that they compute over the whole sequence."""

    def strip(module: nn.Module, args: Any, kwargs: Any) -> Any:
        def stripped(value: Any) -> Any:
            return None if isinstance(value, StateCache) else value

        return tuple(map(stripped, args)), {name: stripped(one) for name, one in kwargs.items()}

    with ExitStack() as stack:
        for module in modules:
            hook = module.register_forward_pre_hook(strip, with_kwargs=True)
            stack.callback(hook.remove)
        yield


def recorded_inputs(vocab_size: int, max_positions: int) -> tuple[Tensor, Tensor, Tensor]:
    """Token ids, positions and sampling tokens of a pass (see `Capture`)."""
    tokens = torch.arange(NUM_TOKENS)
    # Positions grow as squares, so that the distances of short sequences occur too.
    position_ids = tokens.maximum(tokens**2 * (max_positions - 1) // (NUM_TOKENS - 1) ** 2)
    return (tokens * 7919 + 13) % vocab_size, position_ids, tokens[-NUM_SAMPLES:]


class _Turns(dict[int, tuple[int, int]]):
    """Places by layer number, in order. A module of several layers uses the next one's."""

    count = 0

    def __missing__(self, number: int) -> tuple[int, int]:
        return list(self.values())[self.count]


class _Recorder(TorchFunctionMode):
    """Records calls of torch's functions and, through hooks, of modules.

    Calls inside a recorded module are not recorded.
    """

    def __init__(
        self,
        opaque: AbstractSet[type[nn.Module]],
        sites: AbstractSet[Site],
        keeping_states: frozenset[nn.Module],
    ) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self._opaque = opaque
        self._sites = sites
        self._keeping_states = keeping_states
        self._scope: list[nn.Module] = []
        # Calls so far, by name, outside of any module, and in each one of the scope.
        self._counts: list[Counter[str]] = [Counter()]
        self._before: list[Writes] = []
        self._inside = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        # Nothing is copied for calls that are not recorded.
        name = "" if self._inside else name_of(func)
        before = Writes(tensors_in((args, kwargs)), name)
        output = func(*args, **(kwargs or {}))
        changed = before.changed()
        if changed or tensors_in(output):
            return self.record(func, args, kwargs or {}, output, changed)
        return output

    def record(
        self,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: Any,
        changed: tuple[Change, ...] = (),
    ) -> Any:
        """Record a call; returns its output, by token if torch is to repeat the call."""
        if self._inside:
            return output
        is_module = isinstance(target, nn.Module)
        around = self._scope[:-1] if is_module else self._scope
        site = None
        if around and not isinstance(target, AttentionCall | KernelCall):
            calls, name = self._counts[len(around)], name_of(target)
            site = Site(type(around[-1]), name, calls[name])
            calls[name] += 1
        if site in self._sites or type(target) in self._opaque:
            given = {_memory_of(one) for one in tensors_in((args, kwargs))}
            if not any(_memory_of(one) in given for one in tensors_in(output)):
                with self.silence():
                    output = by_token(output, NUM_TOKENS)
        self.calls.append(Call(target, args, kwargs, output, tuple(self._scope), changed, site))
        return output

    @contextmanager
    def silence(self) -> Iterator[None]:
        """Record nothing meanwhile: it belongs to one call, which the caller records."""
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Record the calls of a model's modules."""
        with ExitStack() as stack:
            for module in model.modules():
                for hook in (
                    module.register_forward_pre_hook(self._enter, with_kwargs=True),
                    module.register_forward_hook(self._leave, with_kwargs=True),
                ):
                    stack.callback(hook.remove)
            for namespace in {type(one).__module__ for one in self._keeping_states}:
                stack.enter_context(self._watching_functions(vars(sys.modules[namespace])))
            yield

    @contextmanager
    def _watching_functions(self, namespace: dict[str, Any]) -> Iterator[None]:
        """Record each call from a module with states to a function beside it as one call."""
        functions = {name: one for name, one in namespace.items() if isinstance(one, FunctionType)}
        namespace.update({name: self._watched(name, one) for name, one in functions.items()})
        try:
            yield
        finally:
            namespace.update(functions)

    def _watched(self, name: str, function: FunctionType) -> Callable[..., Any]:
        signature = inspect.signature(function)

        def watched(*args: Any, **kwargs: Any) -> Any:
            if self._inside or not self._scope or self._scope[-1] not in self._keeping_states:
                return function(*args, **kwargs)
            before = Writes(tensors_in((args, kwargs)))
            with self.silence():
                output = by_token(function(*args, **kwargs), NUM_TOKENS)
            call = KernelCall(name, signature.bind(*args, **kwargs).arguments)
            self.record(call, args, kwargs, output, before.changed())
            return output

        return watched

    def _is_one(self, module: nn.Module) -> bool:
        return type(module) in self._opaque or next(module.children(), None) is None

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._scope.append(module)
        self._counts.append(Counter())
        self._before.append(Writes(tensors_in((args, kwargs))))
        self._inside += self._is_one(module)

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        self._inside -= self._is_one(module)
        changed = self._before.pop().changed()
        if self._is_one(module):
            output = self.record(module, args, kwargs, output, changed)
        self._scope.pop()
        self._counts.pop()
        return output


@dataclass(slots=True)
class _RecordedAttention:
    """Stands in for a part of a step's storage and its attention backend. It computes by the
    reference, and records.

    Attributes:
        places: part and index in it of each layer.
        turns: counts the layers that have attended.
        dtype: the type to which it rounds queries, keys and values.
    """

    blocks: KVStorage
    places: Mapping[int, tuple[int, int]]
    recorder: _Recorder
    reference: TorchAttention
    turns: _Turns
    dtype: torch.dtype
    _written: tuple[Tensor, Tensor] | None = None

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        with self.recorder.silence():
            rounded = (one.to(self.dtype).to(one.dtype) for one in (key, value))
            self.blocks.write(self.places[layer][1], slots, *rounded)
        self._written = key, value

    def attend(
        self, query: Tensor, layer: int, context: StepContext, params: AttentionParams
    ) -> Tensor:
        assert self._written is not None
        key, value = self._written
        inner = StepContext(
            backend=self.reference,
            storage=self.blocks,
            slots=context.slots,
            starts=context.starts,
            counts=context.counts,
            block_tables=context.block_tables,
        )
        with self.recorder.silence():
            # If values are in the keys, other numbers may lie between the values of two heads.
            rounded = query.to(self.dtype).to(query.dtype)
            place = self.places[layer][1]
            output = self.reference.attend(rounded, place, inner, params).contiguous()
        call = AttentionCall(layer, query, key, value, params)
        self.recorder.record(call, (), {}, output)
        self.turns.count += 1
        return output


@dataclass(frozen=True, slots=True)
class _RecordedExpansion:
    """An expansion whose uses are recorded as kernel calls."""

    expansion: Expansion
    recorder: _Recorder

    def join(self, content: Tensor, position: Tensor) -> Tensor:
        return self._recorded("join", content, position)

    def absorb(self, query: Tensor) -> Tensor:
        return self._recorded("absorb", query)

    def release(self, attended: Tensor) -> Tensor:
        return self._recorded("release", attended)

    def _recorded(self, name: str, *given: Tensor) -> Tensor:
        with self.recorder.silence():
            output: Tensor = getattr(self.expansion, name)(*given).contiguous()
        call = KernelCall(name, {"expansion": self.expansion, "given": given})
        self.recorder.record(call, given, {}, output)
        return output


def name_of(target: object) -> str:
    """Torch's name of a function, or the class of anything else."""
    if isinstance(target, (nn.Module, AttentionCall)):
        return type(target).__name__
    return str(getattr(target, "__name__", target))


def _memory_of(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors in nested tuples, lists and dictionaries."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for one in value.values() for tensor in tensors_in(one)]
    if isinstance(value, (tuple, list)):
        return [tensor for one in value for tensor in tensors_in(one)]
    return []
