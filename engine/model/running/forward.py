"""Forward: computes a step's logits, by the model's own modules or a program of native kernels."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from engine.api.config import EngineConfig
from engine.api.errors import ModelError
from engine.api.status import OffPath
from engine.batch.shape import ModelShape
from engine.cache.storage import CacheShape, KVStorage, cache_shapes, places
from engine.model.attention.base import AttentionBackend, IntArray, StepContext
from engine.model.attention.batch import PackedStep
from engine.model.attention.cpu_backend import CpuAttention
from engine.model.attention.interface import ATTENTION_NAME, Expansions, computing_step
from engine.model.attention.torch_backend import TorchAttention
from engine.model.attention.triton_backend import TritonAttention
from engine.model.program.coded import Coded
from engine.model.program.forward import make_program
from engine.model.program.unreadable import UnreadableError
from engine.model.program.verify import MismatchError, Wrong
from engine.model.state.cache import StateCache
from engine.model.state.modules import StateModules, find_states
from engine.model.state.probe import cache_argument
from engine.model.state.slots import StateSlots
from engine.model.tracing.latents import extract_expansions
from engine.model.tracing.unofficial import attention_in_force

logger = logging.getLogger(__name__)


class Forward(Protocol):
    """A model that computes packed steps (selective batching, Orca, OSDI'22, section 3)."""

    @property
    def attention(self) -> str:
        """Name of the attention backend, shown with the model."""
        ...

    @property
    def off_path(self) -> tuple[OffPath, ...]:
        """Operations outside our kernels, if these compute the others."""
        ...

    @property
    def off_kernels(self) -> str:
        """Why the whole model runs module by module, as a clause; empty if our kernels compute its
        operations.
        """
        ...

    def storage(self, shape: CacheShape) -> KVStorage:
        """Allocate a KV pool in the layout of this forward pass."""
        ...

    def attach(self, *parts: KVStorage) -> None:
        """Use this pool in the following steps. It has several parts only if the model's layers
        have different heads.
        """
        ...

    def __call__(self, step: PackedStep) -> Tensor:
        """Compute a step.

        Returns:
            [S, vocab_size] float32 on the model's device, contiguous and valid until the next call;
            the caller may change it.
        """
        ...

    def start(self, step: PackedStep) -> None:
        """Compute a step without logits, which `logits_of` then computes for any of its tokens."""
        ...

    def logits_of(self, tokens: IntArray) -> Tensor:
        """Logits of some tokens of the started step.

        Args:
            tokens: their indices in the packed step; at most as many as rows may sample in a step,
                or `engine.model.step.prompts.MOST_LOGITS` if that is more.

        Returns:
            [tokens, vocab_size] float32, as for a step.
        """
        ...


@runtime_checkable
class KeepsStates(Protocol):
    """A `Forward` of a model that keeps states beside keys and values."""

    def copy_states(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy states between slots: (source, target). The slots of sequences are their batch
        indices; those of snapshots follow.
        """
        ...


class ModuleForward:
    """The model's own modules, with our attention.

    Args:
        shape: the model's dimensions.
        states: the modules that keep states beside attention; None if there are none.
        expansions: expansions of the layers that store latents; None if there are none.
        off_kernels: see `Forward`.

    Attributes:
        off_kernels: see `Forward`; callers with a better reason may set it.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        backend: AttentionBackend,
        shape: ModelShape,
        states: StateModules | None = None,
        expansions: Expansions | None = None,
        *,
        off_kernels: str,
    ) -> None:
        self.off_kernels = off_kernels
        model.set_attn_implementation(ATTENTION_NAME)
        if attention_in_force(model) != ATTENTION_NAME:
            raise ModelError(f"{type(model).__name__} does not let its attention be chosen")
        self._model = model
        # Some always return the logits of all tokens.
        self._keeps = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._base = _base_of(model) if self._keeps else None
        self._backend = backend
        self._states = states
        if states is not None:
            states.wrap(states.found)
        self._parts: tuple[KVStorage, ...] = ()
        layers = range(shape.num_layers) if states is None else states.layers
        self._places = dict(zip(layers, places(shape), strict=True))
        self._borrowing = frozenset(layers) - {layers[at] for at in shape.storing}
        self._expansions = expansions or {}
        self._started: tuple[PackedStep, Any] | None = None
        self._arguments: dict[str, Any] = {}
        if states is not None:
            self._arguments = states.arguments
        elif self._expansions:
            # Latents are recognised by what the cache receives.
            self._arguments = {cache_argument(model): StateCache(StateSlots(0))}

    @property
    def attention(self) -> str:
        return self._backend.name

    @property
    def off_path(self) -> tuple[OffPath, ...]:
        """See `Forward`. All operations run module by module."""
        return ()

    def storage(self, shape: CacheShape) -> KVStorage:
        return self._backend.storage(shape)

    def attach(self, *parts: KVStorage) -> None:
        self._parts = parts

    def copy_states(self, pairs: Sequence[tuple[int, int]]) -> None:
        """See `KeepsStates`."""
        assert self._states is not None
        self._states.slots.copy(pairs)

    def __call__(self, step: PackedStep) -> Tensor:
        logits = self._run(step, step.last_tokens)
        if not self._keeps:
            logits = logits[self._on_device(step.last_tokens)]
        return logits.float()

    def start(self, step: PackedStep) -> None:
        """See `Forward`."""
        if self._base is None:
            self._started = step, self._run(step, np.arange(len(step.input_ids)))
            return
        # The head's processing of the last hidden states, such as a softcap, is in the class around
        # the base model. So that runs again for each `logits_of`, around the base model's output.
        kept: list[Any] = []
        hook = self._base.register_forward_hook(lambda module, given, output: kept.append(output))
        try:
            self._run(step, step.last_tokens[:0])
        finally:
            hook.remove()
        self._started = step, kept[0]

    def logits_of(self, tokens: IntArray) -> Tensor:
        """See `Forward`."""
        assert self._started is not None
        step, kept = self._started
        if self._base is None:
            whole: Tensor = kept
            return whole[self._on_device(tokens)].float()
        self._base.forward = lambda *args, **kwargs: kept
        try:
            return self._run(step, tokens).float()
        finally:
            del self._base.forward

    def _on_device(self, array: IntArray) -> Tensor:
        return torch.from_numpy(array).to(self._parts[0].shape.device)

    def _run(self, step: PackedStep, tokens: IntArray) -> Tensor:
        """The logits of some tokens of a step, or of all if the model cannot omit any."""
        input_ids, position_ids, slots = map(
            self._on_device, (step.input_ids, step.position_ids, step.slots)
        )
        contexts = [
            StepContext(
                backend=self._backend,
                storage=storage,
                slots=slots,
                starts=step.starts,
                counts=step.counts,
                block_tables=step.block_tables,
            )
            for storage in self._parts
        ]
        if self._states is not None:
            self._states.begin(step, slots.device)
        with computing_step(
            *contexts,
            places=self._places,
            expansions=self._expansions,
            borrowing=self._borrowing,
        ):
            output = self._model(
                input_ids=input_ids[None],
                position_ids=position_ids[None],
                use_cache=False,
                **({"logits_to_keep": self._on_device(tokens)} if self._keeps else {}),
                **self._arguments,
            )
        logits: Tensor = output.logits[0]
        return logits


def _base_of(model: PreTrainedModel) -> nn.Module | None:
    """The inner model that returns hidden states; None if it is unknown."""
    base: nn.Module = model.base_model
    if base is not model:
        return base
    # Llama4ForCausalLM has it under another name than it states.
    inner = next((one for one in model.children() if isinstance(one, PreTrainedModel)), None)
    return None if inner is None else _base_of(inner) or inner


def pick_backend(*parts: CacheShape) -> str:
    """`triton` on a GPU, `cpu` (the native kernels) on the CPU, if they support caches of all these
    parts; else `torch`.
    """
    if parts[0].device.type == "cuda":
        return "torch" if any(map(TritonAttention.why_not, parts)) else "triton"
    return "torch" if any(map(CpuAttention.why_not, parts)) else "cpu"


def make_forward(
    model: PreTrainedModel,
    config: EngineConfig,
    shape: ModelShape,
    backend: str | None = None,
    coded: Coded | None = None,
    apart: Sequence[Wrong] = (),
) -> Forward:
    """Make the forward pass by which a model computes from now on.

    It takes over the model: a program uses its weights and frees the originals.

    Args:
        model: in `config`'s dtype and on its device.
        backend: `torch`, `triton` or `cpu`; None leaves it to `pick_backend`.
        coded: the result of `engine.model.program.quantize.quantize` for the model.
        apart: see `engine.model.program.forward.make_program`.

    Raises:
        ModelError: the model does not let its attention be chosen.
        ExpansionError: a layer computes something unexpected from its latents.
        MismatchError: a kernel computes something different from the model. In both cases the model
            has lost weights and cannot be used any more.
    """
    model.eval()  # type: ignore[no-untyped-call]
    backend = backend or pick_backend(*cache_shapes(config, shape))
    expansions = extract_expansions(model) if shape.has_latents else None
    states = find_states(model, shape, config.max_num_seqs, config.num_snapshots)
    by_modules = _why_modules(backend, config, shape, states)
    if by_modules:
        _be_plain(model, config, coded)
        return ModuleForward(
            model, _attention(backend), shape, states, expansions, off_kernels=by_modules
        )
    if backend == "triton":
        return _on_gpu(model, config, shape, apart)
    try:
        return make_program(model, config, shape, states, coded, apart, expansions)
    except UnreadableError as error:
        logger.warning(
            "%s runs module by module, with native attention only: %s", type(model).__name__, error
        )
        _be_plain(model, config, coded)
        return ModuleForward(
            model, CpuAttention(), shape, states, expansions, off_kernels=str(error)
        )


def _why_modules(
    backend: str, config: EngineConfig, shape: ModelShape, states: StateModules | None
) -> str:
    """Why no program is tried, as a clause; empty if one is."""
    if backend == "torch":
        ours = TritonAttention if torch.device(config.device).type == "cuda" else CpuAttention
        reasons = map(ours.why_not, cache_shapes(config, shape))
        return next(filter(None, reasons), "torch was asked for")
    if shape.has_latents and backend == "triton":
        return "no kernel of ours expands the latents that it stores"
    if backend == "triton" and states is not None:
        return "no kernel of ours for a GPU keeps states"
    return ""


def _be_plain(model: PreTrainedModel, config: EngineConfig, coded: Coded | None) -> None:
    """Make a model's parameters ordinary tensors, so that its own modules can compute.

    Raises:
        MismatchError: it has another type than the one to serve.
    """
    dtype = str(model.dtype).removeprefix("torch.")
    if dtype != config.dtype:
        raise MismatchError(
            f"{type(model).__name__} runs module by module, which takes {dtype} here and not "
            f"{config.dtype}"
        )
    if coded is not None:
        coded.compact.unpack_module(model)


def _attention(backend: str) -> AttentionBackend:
    if backend == "torch":
        return TorchAttention()
    return TritonAttention() if backend == "triton" else CpuAttention()


def _on_gpu(
    model: PreTrainedModel, config: EngineConfig, shape: ModelShape, apart: Sequence[Wrong]
) -> Forward:
    # The kernels can be imported only if triton is installed.
    from engine.model.gpu.forward import make_gpu_program

    try:
        return make_gpu_program(model, config, shape, apart)
    except UnreadableError as error:
        logger.warning(
            "%s runs module by module, without CUDA graphs: %s", type(model).__name__, error
        )
        return ModuleForward(model, TritonAttention(), shape, off_kernels=str(error))
