"""load_model, load_entry: load a model by name, or by an entry of the registry."""

from __future__ import annotations

import gc
import logging
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
import transformers
from transformers import PreTrainedModel

from engine.api.client import LoadRequest
from engine.api.config import EngineConfig
from engine.api.errors import EngineError, ModelError, UnavailableError, cause_of
from engine.batch.plan import Runner
from engine.cache.storage import cache_shapes
from engine.model import packed, verdicts
from engine.model.blame import blaming
from engine.model.checkpoint import CONFIG_FILE, find_gguf, open_checkpoint
from engine.model.coding import Coding
from engine.model.compact import CompactWeights, packed_saving
from engine.model.device import (
    default_share,
    free_memory,
    gpu_uuid,
    is_out_of_memory,
    loading_dtype,
    noticing_loss,
    pick_device,
    pick_dtype,
    release_pinned,
    use_device,
    with_swap,
)
from engine.model.downloads import fetch, mark_used
from engine.model.estimate import Numbers
from engine.model.folder import (
    default_sampling,
    eos_token_ids,
    has_tokenizer,
    max_positions,
    model_key,
    read_config,
    read_generation,
    read_stated,
    read_tokenizer,
    read_vocabulary,
)
from engine.model.footprint import footprint_of
from engine.model.forward import Forward, ModuleForward, pick_backend
from engine.model.gate import checked_forward, find_class
from engine.model.latents import ExpansionError
from engine.model.loss import AT_LOAD, Sample
from engine.model.memory import MemoryNeeds, plan_memory, pool_bounds
from engine.model.meter import Meter
from engine.model.packed import MappedWeights
from engine.model.program.arena import Arena
from engine.model.program.coded import Coded
from engine.model.program.forward import ProgramForward, restore_program
from engine.model.program.origins import Origins
from engine.model.program.quantize import check_device
from engine.model.program.saved import SavedGraph
from engine.model.program.verify import MismatchError, Wrong
from engine.model.quantized.gguf import GgufFile
from engine.model.quantized.methods import forget, method_of, stored_weights
from engine.model.registry import ModelEntry, Registry
from engine.model.rope import freeze_rope
from engine.model.runner import TorchRunner
from engine.model.size_text import show_bytes
from engine.model.sizes import check_elements
from engine.model.starting import measured, starting_knobs
from engine.model.text_part import language_part, text_config, without
from engine.model.trace import TracedModel, trace
from engine.model.verdicts import Verdict
from engine.model.weights import load_weights, open_weights
from engine.native import kernels
from engine.serving.loading import LoadedModel, Progress
from engine.simulation.devices import Device
from engine.text.codec import ChatCodec, Encoder
from engine.text.grammars import Grammars
from engine.text.pool import EncoderPool, encoding

logger = logging.getLogger(__name__)

# Whether the previous loading failed.
_has_failed = threading.Event()

# Positions of a model without attention, which has no limit.
_UNLIMITED = 1 << 20


def load_model(request: LoadRequest, progress: Progress) -> LoadedModel:
    """Find, check and load a model (an `engine.serving.loading.ModelLoader`)."""
    entry = Registry.read(request.models_file).find(request.model)
    with encoding() as encoder:
        return load_entry(entry, request, progress, encoder)


def load_entry(
    entry: ModelEntry,
    request: LoadRequest,
    progress: Progress,
    encoder: EncoderPool,
    sample: Sample = AT_LOAD,
) -> LoadedModel:
    """Check and load the model of an entry.

    Everything that can be refused without the weights is refused before they are read. A folder,
    and a model that was downloaded before, are loaded without the network.

    Args:
        encoder: see `engine.text.pool.encoding`.
        sample: amount of text for measuring the loss of quantization.

    Raises:
        ModelError, InvalidConfigError: see `engine.serving.loading.ModelLoader`.
    """
    _quiet()
    if _has_failed.is_set():
        # transformers' modules and configs refer to each other, so a model whose loading failed
        # keeps its memory until the collector runs, for 0.2 s. It would count against the next one.
        gc.collect()
        _has_failed.clear()
    try:
        return _load_entry(entry, request, progress, encoder, sample)
    except BaseException:
        _has_failed.set()
        raise


def _load_entry(
    entry: ModelEntry,
    request: LoadRequest,
    progress: Progress,
    encoder: EncoderPool,
    sample: Sample,
) -> LoadedModel:
    folder = entry.local_folder() or fetch(entry, progress)
    progress("checking the model")
    with ThreadPoolExecutor(1) as aside:
        with blaming(f"{folder} cannot be loaded"):
            preparation = _Preparation(request, entry, folder, sample, encoder)
        with (
            noticing_loss(preparation.device),
            _telling_of_memory(entry.name, preparation.device),
        ):
            grammars = aside.submit(preparation.make_grammars, encoder)
            forward, envelope = preparation.load(encoder, progress)
            runner, envelope = preparation.start(forward, envelope, progress)
    mark_used(entry)
    model = preparation.describe(envelope, forward, runner, encoder, grammars.result())
    if request.spare_encoder:
        encoder.start_spare()
    # The interpreter waits for this thread at exit, because llguidance cannot be interrupted.
    arguments = (grammars.result(),)
    threading.Thread(target=preparation.finish, args=arguments, name="engine-loaded").start()
    return model


def examine_entry(entry: ModelEntry, folder: Path, request: LoadRequest) -> MemoryNeeds:
    """The memory needs of a model on this machine, without reading its weights.

    Raises:
        ModelError, InvalidConfigError: see `load_entry`.
    """
    _quiet()
    with blaming(f"{folder} cannot be loaded"):
        return _Preparation(request, entry, folder).needs


class ModelRunner(Runner, Protocol):
    """A runner that owns a model.

    Attributes:
        swap_rate: bytes a second at which blocks are swapped; 0 without host blocks.
    """

    @property
    def swap_rate(self) -> float: ...

    def close(self) -> None:
        """Free the model and the pool; the runner cannot be used again."""
        ...


class _Preparation:
    """The part of loading that needs no weights, so that its errors show before they are read.

    Args:
        encoder: gets the tokenizer as soon as there is one; None if nothing will be encoded.

    Attributes:
        device: the device of the model.
        traced: the model as traced without its weights.

    Raises:
        ModelError, InvalidConfigError: see `engine.serving.loading.ModelLoader`.
    """

    def __init__(
        self,
        request: LoadRequest,
        entry: ModelEntry,
        path: Path,
        sample: Sample = AT_LOAD,
        encoder: EncoderPool | None = None,
    ) -> None:
        self._request = request
        self._entry = entry
        self._closed = threading.Event()
        self._later: Callable[[], None] = lambda: None
        self._quantize = request.quantize or entry.quantize
        file = find_gguf(path)
        gguf = None if file is None else GgufFile(file)
        folder = path if file is None else file.parent
        stated = read_stated(folder, gguf)
        self._checkpoint = open_checkpoint(folder) if gguf is None else gguf.checkpoint
        self.device = pick_device(request.device)
        use_device(self.device)
        self._dtype = pick_dtype(request.dtype, entry.dtype, self._checkpoint.dtype, self.device)
        self._key = model_key(entry.name, self._checkpoint.fingerprint, folder, self._type_name)
        recipe = None if gguf is None or has_tokenizer(folder) else gguf.tokenizer_recipe
        if encoder is not None and recipe is not None:
            # At once, because the encoding process takes longest: 0.5 s for 152,064 tokens.
            encoder.begin(recipe, self._key)
        self._method = method_of(stated, self._checkpoint) if gguf is None else gguf.kind
        self._coding = Coding(entry.name, self._method, sample)
        self._config = language_part(read_config(folder, stated, self._checkpoint))
        forget(self._config)
        with blaming(f"{folder / CONFIG_FILE} is not valid"):
            self._whole = find_class(self._config)
            self._part = text_config(self._whole, self._config)
        self._folder = folder
        if recipe is None:
            tokenizer = read_tokenizer(folder)
            if encoder is not None:
                encoder.begin(tokenizer, self._key)
        else:
            with blaming(f"the tokenizer in {path} is broken"):
                tokenizer = recipe.decoder()
        self.traced = self._trace()
        self._class = without(self._whole, self.traced.unread)
        is_packed = self._method is not None
        check_elements(self.traced.num_elements, self._checkpoint, folder / CONFIG_FILE, is_packed)
        self._weights = (
            stored_weights(stated, self._checkpoint)
            if gguf is None
            else gguf.stored_weights(self._config)
        )
        self._measured: Device | None = None
        self._share = entry.memory_share or default_share(self.device)
        self._free = free_memory(self.device)
        self._backend, self._envelope = self._plan_traced()
        generation = read_generation(folder)
        self._sampling, self._sampling_sources = default_sampling(entry, generation, folder)
        self._vocabulary = read_vocabulary(folder, tokenizer)
        self._ends = eos_token_ids(folder, generation, self._config, tokenizer, gguf)

    @property
    def needs(self) -> MemoryNeeds:
        """The model's needs of device memory."""
        return MemoryNeeds(
            name=self._entry.name,
            shape=self.traced.shape,
            weight_bytes=self._weight_bytes,
            loading_bytes=self._loading_bytes,
            saved_bytes=self._saved_bytes,
            num_layers=self.traced.num_layers,
            layer_width=self.traced.layer_width,
            layer_experts=self.traced.layer_experts,
            max_positions=(
                max_positions(self._config, self._folder)
                if self.traced.shape.num_layers
                else _UNLIMITED
            ),
            context_length=self._entry.context_length,
        )

    @property
    def _dtype_name(self) -> str:
        return str(self._dtype).removeprefix("torch.")

    @property
    def _weight_bytes(self) -> int:
        """Bytes of all weights in memory, where some stored ones may have no place."""
        held = self.traced.num_elements * self._dtype.itemsize
        if self._method is not None:
            return held
        return min(self._checkpoint.num_bytes_as(self._dtype.itemsize), held)

    @property
    def _loading_bytes(self) -> int:
        """Bytes of all weights during loading. Those that stay packed are never all unpacked at
        once.
        """
        if not self._stays_packed:
            return self._weight_bytes
        packed = [one for one in self._weights if one.kind]
        numbers = self.traced.num_elements - sum(math.prod(one.shape) for one in packed)
        return max(numbers, 0) * self._dtype.itemsize + sum(one.num_bytes for one in packed)

    @property
    def _type_name(self) -> str:
        """Identifies the precision of a model with these weights."""
        plain = self._quantize == "none"
        return self._dtype_name if plain else f"{self._dtype_name}-{self._quantize}"

    @property
    def _saved_bytes(self) -> int:
        """Bytes saved by quantization: an estimate before it, exact afterwards."""
        if self.traced.shape.saved_bytes:
            return self.traced.shape.saved_bytes
        if self._quantize == "none":
            stored = ((one.kind, one.shape) for one in self._weights if self._stays_packed)
            return packed_saving(stored, self._dtype.itemsize)
        numbers = Numbers(self.traced.num_multiplied, self.traced.num_head)
        return numbers.saved(self._quantize, self._dtype.itemsize)

    def _trace(self, *, latents: bool = True) -> TracedModel:
        """As `engine.model.trace.trace`, once for a configuration and a build."""

        def make() -> dict[str, Any]:
            return trace(self._whole, self._part, self._dtype, latents=latents).to_json()

        config = self._part.to_json_string()
        facts = "trace", self._whole.__name__, config, self._dtype_name, latents
        return TracedModel.from_json(verdicts.recall(facts, make))

    def _plan_traced(self) -> tuple[str, EngineConfig]:
        """The backend and the envelope of the traced model."""
        smallest = EngineConfig(
            num_blocks=1,
            max_model_len=1,
            dtype=self._dtype_name,
            device=str(self.device),
            quantize=self._quantize,
        )
        check_device(smallest, self.traced.shape)
        backend = pick_backend(*cache_shapes(smallest, self.traced.shape))
        self._stays_packed = backend == "cpu" and self._quantize == "none"
        return backend, self._plan(backend)

    def _plan(self, backend: str) -> EngineConfig:
        return plan_memory(
            self._request,
            self.needs,
            footprint_of(backend, self.device),
            device=str(self.device),
            dtype=self._dtype_name,
            quantize=self._quantize,
            free=self._free,
            share=self._share,
            host_free=free_memory(torch.device("cpu")),
        )

    def make_grammars(self, encoder: EncoderPool) -> Grammars:
        """Make the compiler of structures. It waits for the encoding process."""
        ends = self._ends | _turn_ends(encoder, self._entry.name)
        return Grammars(encoder, self._vocabulary.special, ends, self.traced.shape.vocab_size)

    def load(self, encoder: Encoder, progress: Progress) -> tuple[Forward, EngineConfig]:
        """Read the weights and test the model. If a layer computes something from its latents that
        attention does not support, store the result instead of the latents.
        """
        try:
            return self._load_traced(encoder, progress)
        except ExpansionError as error:
            reason = str(error)
            logger.warning("%s: %s, so what it makes is stored", self._entry.name, reason)
        # As below, this runs outside the except block.
        gc.collect()
        self._free = free_memory(self.device)
        self.traced = self._trace(latents=False)
        self._backend, self._envelope = self._plan_traced()
        return self._load_traced(encoder, progress)

    def _load_traced(self, encoder: Encoder, progress: Progress) -> tuple[Forward, EngineConfig]:
        """Load the model as traced. If kernels of ours are wrong, the weights are read again, and
        torch computes their operations, or all if necessary.
        """
        key = self._verdict_key()
        known = verdicts.find(key)
        apart = () if known is None else known.apart
        if known is not None and known.graph is not None:
            restored = self._restore(key, known.graph, known, progress)
            if restored is not None:
                return restored, self._with_what_is_left(self._envelope, restored)
            known = None
        while True:
            try:
                forward = self._load(self._backend, self._envelope, encoder, progress, apart, known)
            except MismatchError as error:
                # The error is logged as text, because a log record would keep its frames, and with
                # them the model.
                reason, wrong = str(error), error.wrong
            else:
                if known is None and self._quantize == "none":
                    self._keep(key, forward, apart)
                if self._backend == "triton" and isinstance(forward, ModuleForward):
                    return forward, self._plan("triton modules")
                return forward, self._with_what_is_left(self._envelope, forward)
            # This runs outside the except block, where the error no longer keeps the model.
            gc.collect()
            if not wrong:
                break
            # None of these is in `apart`, so that this loop ends.
            apart, known = apart + wrong, None
            logger.warning("%s: %s; torch computes this instead", self._entry.name, reason)
        if self._quantize != "none":
            raise ModelError(
                f"{self._entry.name} cannot be quantized to {self._quantize}: {reason}", "quantize"
            )
        logger.error("%s; our kernels are not used for %s", reason, self._entry.name)
        self._free = free_memory(self.device)
        self._stays_packed = False
        is_asked = self._request.dtype not in (None, "auto")
        if not is_asked and loading_dtype(self._dtype, self.device) != self._dtype:
            # torch alone would take seconds for a token.
            self._dtype = loading_dtype(self._dtype, self.device)
            self.traced = self._trace()
        envelope = self._plan("torch")
        forward = self._load("torch", envelope, encoder, progress)
        assert isinstance(forward, ModuleForward)
        forward.off_kernels = reason
        return forward, envelope

    def start(
        self, forward: Forward, envelope: EngineConfig, progress: Progress
    ) -> tuple[ModelRunner, EngineConfig]:
        """Make a runner with its pool; returns it with the envelope that it serves."""
        total = self._checkpoint.num_bytes
        if self.device.type == "cuda":
            # Before the pool takes the memory that this needs.
            self._measured = measured(self.device, self._dtype)
        progress("allocating the KV pool", total, total)
        shape, is_asked = self.traced.shape, bool(self._request.swap_memory)
        if isinstance(forward, (ModuleForward, ProgramForward)):
            return with_swap(
                lambda config: TorchRunner(forward, config, shape), envelope, is_asked=is_asked
            )
        # The kernels can be imported only if triton is installed.
        from engine.model.gpu.forward import GpuForward
        from engine.model.gpu.sampler import why_not
        from engine.model.gpu.start import start_runner

        assert isinstance(forward, GpuForward)
        if reason := why_not(shape.vocab_size, self.device):
            logger.warning(
                "%s: torch chooses its tokens, one step at a time and without CUDA graphs, because "
                "our kernels do not: %s",
                self._entry.name,
                reason,
            )
            return TorchRunner(forward, envelope, shape), envelope
        bounds = pool_bounds(self._request, self.needs, envelope)
        share = 1.0 if bounds.least == bounds.most else self._share
        return start_runner(
            forward,
            envelope,
            shape,
            bounds,
            progress,
            name=self._entry.name,
            left=self._free - int(self._free * share),
            swap_is_asked=is_asked,
        )

    def _load(
        self,
        backend: str,
        envelope: EngineConfig,
        encoder: Encoder,
        progress: Progress,
        apart: Sequence[Wrong] = (),
        known: Verdict | None = None,
    ) -> Forward:
        checkpoint, total = self._checkpoint, self._checkpoint.num_bytes
        model, compact, origins = self._read_weights(backend, progress)
        with blaming(f"{checkpoint.folder / CONFIG_FILE} is not valid"):
            freeze_rope(model, envelope.max_model_len)
        shape = self.traced.shape
        coded = self._coding.find(
            model, envelope, shape, backend, encoder, progress, total, compact, origins, known
        )
        progress("testing the model", total, total)
        forward = checked_forward(
            model, envelope, shape, backend, coded, apart, is_known=known is not None
        )
        self._settle(forward, coded)
        self._coding.compare(forward, envelope, shape)
        return forward

    def _settle(self, forward: Forward, coded: Coded | None) -> None:
        """Record the memory of a forward pass."""
        shape = self.traced.shape
        kept = _kept_bytes(forward)
        if coded is not None or kept:
            saved_bytes = 0 if coded is None else coded.saved_bytes
            saved = replace(shape, saved_bytes=saved_bytes - kept)
            self.traced = replace(self.traced, shape=saved)
        if self._quantize == "none" and self._method is not None:
            logger.info(
                "%s is quantized by %s on disk, %s; it is served in %s, %s",
                self._entry.name,
                self._method,
                show_bytes(self._checkpoint.num_bytes),
                f"{self._dtype_name} and codes" if self._coding.packed_as else self._dtype_name,
                show_bytes(self.needs.served_bytes),
            )

    def _verdict_key(self) -> str:
        return verdicts.key_of(
            (one.file for one in self._checkpoint.tensors),
            self._checkpoint.fingerprint,
            self._config.to_json_string(),
            self._key,
            self._backend,
            self._envelope.max_model_len,
            self._coding.sample,
        )

    def _keep(self, key: str, forward: Forward, apart: Sequence[Wrong]) -> None:
        """Store the findings of the checks for the next loading. Quantized weights are compared
        with the originals each time.
        """
        if isinstance(forward, ProgramForward):
            verdicts.keep(key, Verdict(tuple(apart), self._coding.loss, forward.saved))
            if forward.saved is not None:
                self._settle_packed(key, forward, None)
            forward.saved = None

    def _packed_path(self, key: str) -> Path:
        return self._entry.packed_folder / f"{key}.weights"

    def _settle_packed(
        self, key: str, forward: ProgramForward, mapped: MappedWeights | None
    ) -> None:
        """Store the packed weights for the next loading, or replace the file that they are mapped
        from by memory, once the model is loaded.
        """
        if mapped is not None:
            self._later = partial(mapped.unmap, self._is_open)
        elif verdicts.KEPT:
            path = self._packed_path(key)
            self._later = partial(packed.keep, path, forward.pieces, self._is_open)
        forward.pieces = ()

    def finish(self, grammars: Grammars) -> None:
        """Do the work that loading does not wait for; blocks."""
        grammars.prepare()
        self._later()

    def _is_open(self) -> bool:
        """Whether the model is neither closed nor left by a program that ends."""
        return not self._closed.is_set() and threading.main_thread().is_alive()

    def _restore(
        self, key: str, graph: SavedGraph, known: Verdict, progress: Progress
    ) -> ProgramForward | None:
        """The program of a model that was loaded before. Its packed weights are read from the
        cache, or packed while they are read. None if the graph does not match the model or is
        broken, which is logged.
        """
        meter = None
        native = kernels()
        assert native is not None
        try:
            names, file = graph.names, packed.find(self._packed_path(key))
            read = [one for one in self._weights if one.name in names and one.blocks is not None]
            total = sum(one.num_bytes for one in read) if file is None else file.num_bytes
            meter = Meter("loading weights", total, progress)
            compact, memory = open_weights(read, self._dtype, meter)
            coded = self._coding.find_known(compact, self._envelope, known.loss)
            mapped = None if file is None else file.map(native, meter)
            arena = Arena(native, None if mapped is None else mapped.pieces)
            forward = restore_program(
                graph, memory, self._envelope, self.traced.shape, coded, known.apart, arena
            )
        except ModelError:
            raise
        except Exception as error:
            if is_out_of_memory(error) or (meter is not None and meter.interrupted):
                raise
            reason = cause_of(error)
        else:
            meter.finish()
            self._settle(forward, coded)
            self._settle_packed(key, forward, mapped)
            return forward
        # As in `_load_traced`, this runs outside the except block.
        gc.collect()
        logger.warning(
            "%s: its saved graph cannot be used, and the model is checked anew: %s",
            self._entry.name,
            reason,
        )
        return None

    def _read_weights(
        self, backend: str, progress: Progress
    ) -> tuple[PreTrainedModel, CompactWeights, Origins]:
        """The model with its weights; those of them that stay in stored form, if kernels can
        multiply them so; and those that were stored as codes.
        """
        kept = CompactWeights(self._dtype)
        is_kept = self._stays_packed and backend == "cpu"
        dtype = loading_dtype(self._dtype, self.device) if is_kept else self._dtype
        while True:
            origins = Origins()
            model = load_weights(
                self._class,
                self._part,
                self._checkpoint.folder,
                self._weights,
                dtype,
                self.device,
                progress,
                kept if is_kept else None,
                origins,
            )
            if not is_kept or kept.settle(model):
                return model, kept, origins
            logger.info("%s: its weights are unpacked, since layers share them", self._entry.name)
            kept, is_kept, dtype = CompactWeights(self._dtype), False, self._dtype

    def _with_what_is_left(self, envelope: EngineConfig, forward: Forward) -> EngineConfig:
        """An envelope whose pool gets the memory saved by packed weights, less the originals that
        torch keeps.
        """
        if _kept_bytes(forward):
            return replace(envelope, num_blocks=self._plan(self._backend).num_blocks)
        if self._method is None or not self.traced.shape.saved_bytes:
            return envelope
        num_blocks = self._plan(self._backend).num_blocks
        return replace(envelope, num_blocks=max(envelope.num_blocks, num_blocks))

    def describe(
        self,
        envelope: EngineConfig,
        forward: Forward,
        runner: ModelRunner,
        encoder: EncoderPool,
        grammars: Grammars,
    ) -> LoadedModel:
        """Describe the loaded model for the host."""
        shape = self.traced.shape
        card = shape.card(
            envelope,
            name=self._entry.name,
            architecture=self._class.__name__,
            attention=forward.attention,
            gpu_uuid=gpu_uuid(self.device),
        )
        card = replace(
            card,
            sampling=self._sampling,
            sampling_sources=self._sampling_sources,
            has_chat_template=self._vocabulary.has_template,
            switches_thinking="enable_thinking" in self._vocabulary.template,
            presets=self._entry.presets,
            quantize=self._quantize,
            packed_as=self._coding.packed_as,
            rounded_to=self._coding.rounded_to,
            loss=self._coding.loss,
            off_path=forward.off_path,
            off_kernels=forward.off_kernels,
        )
        if not card.has_chat_template:
            logger.warning(
                "%s has no chat template, so it is offered as completion: a chat is a text with "
                "the names of the roles, and a reply ends where one of them begins a line",
                card.name,
            )
        logger.info(
            "loaded %s: %s, %s on %s, %d blocks of %d tokens",
            card.name,
            card.architecture,
            card.dtype,
            card.device,
            envelope.num_blocks,
            envelope.block_size,
        )
        start = starting_knobs(envelope, shape, self._measured)
        return LoadedModel(
            key=self._key,
            card=card,
            config=envelope,
            shape=shape,
            runner=runner,
            codec=ChatCodec(self._vocabulary, encoder, self._key, grammars),
            knobs=start.knobs,
            knob_notes=start.notes,
            eos_token_ids=grammars.ends,
            swap_rate=runner.swap_rate,
            close=_closer(runner, encoder, self._closed),
        )


def _kept_bytes(forward: Forward) -> int:
    return forward.kept_bytes if isinstance(forward, ProgramForward) else 0


def _turn_ends(encoder: EncoderPool, name: str) -> frozenset[int]:
    """The tokens that end a reply by the chat template; empty if that fails."""
    try:
        return frozenset(encoder.turn_ends())
    except UnavailableError:
        raise  # the model could not be loaded
    except EngineError as error:
        logger.warning("%s: %s", name, error.message)
        return frozenset()


@contextmanager
def _telling_of_memory(name: str, device: torch.device) -> Iterator[None]:
    """Turn a failed allocation into a ModelError that states the free memory."""
    before = free_memory(device)
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise ModelError(
            f"{device} ran out of memory while {name} was loaded, with {show_bytes(before)} free "
            f"before and {show_bytes(free_memory(device))} now"
        ) from error


def _quiet() -> None:
    """Disable transformers' progress bars, and send its log to the program's."""
    log: Any = transformers.utils.logging
    log.disable_progress_bar()
    log.disable_default_handler()
    log.enable_propagation()


def _closer(
    runner: ModelRunner, encoder: EncoderPool, closed: threading.Event
) -> Callable[[], None]:
    def close() -> None:
        closed.set()
        encoder.close()
        runner.close()
        gc.collect()  # as in `load_entry`
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            release_pinned()

    return close
