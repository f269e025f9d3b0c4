"""load_model, load_entry: load a model by name, or by an entry of the registry.

A load makes one value from another: the model's files (`engine.model.loading.source`), a plan of
memory, the tested forward pass, a runner with its pool, and the description for the host.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
import transformers
from transformers import PreTrainedModel

from engine.api.client import LoadRequest
from engine.api.config import EngineConfig
from engine.api.errors import EngineError, ModelError, UnavailableError, cause_of
from engine.api.sampling import SamplingParams
from engine.batch.plan import Runner
from engine.model.catalog.downloads import fetch, mark_used
from engine.model.catalog.registry import ModelEntry, Registry
from engine.model.checks import verdicts
from engine.model.checks.coding import Coding
from engine.model.checks.gate import checked_forward
from engine.model.checks.loss import AT_LOAD, Sample
from engine.model.checks.verdicts import Verdict
from engine.model.files import kept
from engine.model.files.blame import blaming
from engine.model.files.checkpoint import CONFIG_FILE
from engine.model.files.compact import CompactWeights
from engine.model.files.folder import (
    default_sampling,
    eos_token_ids,
    read_generation,
    read_vocabulary,
)
from engine.model.files.meter import Meter
from engine.model.files.size_text import format_bytes
from engine.model.files.tokenizer import FolderTokenizer
from engine.model.loading import packed
from engine.model.loading.packed import MappedWeights
from engine.model.loading.plan import Plan
from engine.model.loading.source import Source, name_of
from engine.model.loading.starting import measured, starting_knobs
from engine.model.loading.weights import load_weights, open_weights
from engine.model.machine.device import (
    free_memory,
    gpu_uuid,
    is_out_of_memory,
    loading_dtype,
    noticing_loss,
    release_pinned,
    with_swap,
)
from engine.model.machine.memory import MemoryNeeds, pool_bounds
from engine.model.program.arena import Arena
from engine.model.program.coded import Coded, Origins
from engine.model.program.forward import ProgramForward, restore_program
from engine.model.program.saved import SavedGraph
from engine.model.program.verify import MismatchError, Wrong
from engine.model.running.forward import Forward, ModuleForward
from engine.model.running.runner import TorchRunner
from engine.model.tracing.latents import ExpansionError
from engine.model.tracing.rope import freeze_rope
from engine.model.tracing.text_part import without
from engine.native import kernels, trim_heap
from engine.serving.loading import LoadedModel, Progress
from engine.simulation.devices import Device
from engine.text.channels import Channels
from engine.text.codec import ChatCodec
from engine.text.grammars import Grammars
from engine.text.job import CopyJob, Encoder, EndsJob, TableJob
from engine.text.pool import EncoderPool, encoding
from engine.text.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

# Whether the previous loading failed.
_has_failed = threading.Event()


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
    path = entry.local_folder() or fetch(entry, progress)
    progress("checking the model")
    with ThreadPoolExecutor(1) as aside:
        with blaming(f"{path} cannot be loaded"):
            source = Source.read(request, entry, path, encoder)
            plan = Plan.make(source)
        # Text of the files, as `str`: 11 MB of 49,152 tokens, 40 MB of 262,144.
        trim_heap()
        reading = aside.submit(_read_chat, source, encoder, plan.shape.vocab_size)

        def show(detail: str, loaded_bytes: int = 0, total_bytes: int = 0) -> None:
            if reading.done():
                reading.result()  # may raise, and then no more weights are read
            progress(detail, loaded_bytes, total_bytes)

        with noticing_loss(source.device), _telling_of_memory(entry.name, source.device):
            found = _find_forward(plan, sample, encoder, show)
            started = _start(found, show)
    mark_used(entry)
    chat, grammars = reading.result()  # may raise, and then no thread is to hold the weights
    model = _describe(found, started, chat, encoder, grammars, _begin(found.later))
    trim_heap()
    if request.spare_encoder:
        encoder.start_spare()
    # The interpreter waits for this thread at exit, because llguidance cannot be interrupted.
    work = partial(_prepare, encoder, source.recipe, grammars)
    threading.Thread(target=work, name="engine-grammars").start()
    return model


def _prepare(encoder: EncoderPool, recipe: object, grammars: Grammars) -> None:
    """Do what a loading need not wait for."""
    if isinstance(recipe, FolderTokenizer):
        try:
            # Later processes, and later loads, need not read the folder, which may be removed.
            encoder.replace_tokenizer(recipe.copied(lambda: encoder.run(CopyJob())))
        except UnavailableError:
            return  # The model was closed.
        except EngineError as error:
            logger.warning("another process would read the tokenizer again: %s", error.message)
    grammars.prepare()


def _begin(later: _Later | None) -> Callable[[], None]:
    """Begin the work for packed weights in a thread.

    Returns:
        a function that ends the work, and waits until nothing of the weights is held.
    """
    if later is None:
        return lambda: None
    is_closed = threading.Event()

    def is_wanted() -> bool:
        return not is_closed.is_set() and threading.main_thread().is_alive()

    thread = threading.Thread(target=later, args=(is_wanted,), name="engine-packed")
    thread.start()

    def stop() -> None:
        is_closed.set()
        thread.join()

    return stop


def examine_entry(entry: ModelEntry, folder: Path, request: LoadRequest) -> MemoryNeeds:
    """The memory needs of a model on this machine, without reading its weights.

    Raises:
        ModelError, InvalidConfigError: see `load_entry`.
    """
    _quiet()
    with blaming(f"{folder} cannot be loaded"):
        source = Source.read(request, entry, folder)
        plan = Plan.make(source)
        _Chat.read(source, source.recipe.build())
    return plan.needs


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


@dataclass(frozen=True, slots=True)
class _Chat:
    """The part of a model that chats need beside its logits.

    Attributes:
        ends: tokens that end a reply, by the model's files.
        sampling, sampling_sources: see `engine.model.files.folder.default_sampling`.
    """

    name: str
    vocabulary: Vocabulary
    ends: frozenset[int]
    sampling: SamplingParams
    sampling_sources: Mapping[str, str]

    @classmethod
    def read(cls, source: Source, tokenizer: Any) -> _Chat:
        folder = source.folder
        generation = read_generation(folder)
        sampling, sources = default_sampling(source.entry.sampling, generation, folder)
        vocabulary = read_vocabulary(folder, tokenizer)
        _check_thinking(source.entry, vocabulary)
        ends = eos_token_ids(folder, generation, source.config, tokenizer, source.gguf)
        return cls(source.entry.name, vocabulary, ends, sampling, sources)

    def make_grammars(self, encoder: EncoderPool, vocab_size: int) -> Grammars:
        """Make the compiler of structures. It waits for the encoding process."""
        ends = self.ends | _turn_ends(encoder, self.name)
        return Grammars(encoder, self.vocabulary.special, ends, vocab_size)


def _read_chat(source: Source, encoder: EncoderPool, vocab_size: int) -> tuple[_Chat, Grammars]:
    """Read the part of a model that chats need, and make the compiler of structures. Both wait for
    the encoding process, while other threads read the weights.

    Raises:
        ModelError: the tokenizer is broken, or `begins_thinking` cannot be true.
        UnavailableError: the model was closed.
    """
    chat = _Chat.read(source, _decoding_side(source, encoder))
    return chat, chat.make_grammars(encoder, vocab_size)


def _decoding_side(source: Source, encoder: EncoderPool) -> Any:
    """A tokenizer that decodes: a table of tokens, unless only the tokenizer's own code decodes."""
    broken = f"the tokenizer in {source.folder} is broken"
    with blaming(broken):
        if not isinstance(source.recipe, FolderTokenizer):
            return source.recipe.table()
        try:
            # The program would take 0.6 s to read 152,064 tokens, which the process has read.
            table = source.recipe.table(lambda: encoder.run(TableJob()))
        except (ModelError, UnavailableError):
            raise
        except EngineError as error:
            raise ModelError(f"{broken}: {error.message}") from None
        return source.recipe.build() if table is None else table


# It gets a function that says whether the work is still wanted.
_Later = Callable[[Callable[[], bool]], None]


@dataclass(frozen=True, slots=True)
class _Found:
    """A model's forward pass, tested.

    Attributes:
        plan: settled.
        envelope: what the forward pass serves.
        coding: how its weights are coded.
        later: work for its packed weights once the model serves; None if there is none.
    """

    plan: Plan
    forward: Forward
    envelope: EngineConfig
    coding: Coding
    later: _Later | None = None


def _find_forward(plan: Plan, sample: Sample, encoder: Encoder, progress: Progress) -> _Found:
    """Read the weights and test the model. If a layer computes something from its latents that
    attention does not support, store the result instead of the latents.
    """
    try:
        return _find_planned(plan, sample, encoder, progress)
    except ExpansionError as error:
        reason = str(error)
        logger.warning("%s: %s, so what it makes is stored", plan.source.entry.name, reason)
    # As below, this runs outside the except block.
    gc.collect()
    return _find_planned(Plan.make(plan.source, latents=False), sample, encoder, progress)


def _find_planned(plan: Plan, sample: Sample, encoder: Encoder, progress: Progress) -> _Found:
    """Load the model as planned. If kernels of ours are wrong, the weights are read again, and
    torch computes their operations, or all if necessary.
    """
    name, quantize = plan.source.entry.name, plan.source.quantize
    key = _key(plan, plan.envelope.max_model_len, sample)
    known = verdicts.find(key)
    apart = () if known is None else known.apart
    if known is not None and known.graph is not None:
        restored = _restore(plan, sample, known.graph, known, progress)
        if restored is not None:
            return restored
        known = None
    while True:
        try:
            found = _load_weights(plan, sample, encoder, progress, apart, known)
        except MismatchError as error:
            # The error is logged as text, because a log record would keep its frames, and with
            # them the model.
            reason, wrong = str(error), error.wrong
        else:
            if known is not None or quantize != "none":
                return found
            return _store_findings(found, key, apart)
        # This runs outside the except block, where the error no longer keeps the model.
        gc.collect()
        if not wrong:
            break
        # None of these is in `apart`, so that this loop ends.
        apart, known = apart + wrong, None
        logger.warning("%s: %s; torch computes this instead", name, reason)
    if quantize != "none":
        raise ModelError(f"{name} cannot be quantized to {quantize}: {reason}", "quantize")
    logger.error("%s; our kernels are not used for %s", reason, name)
    found = _load_weights(plan.by_torch(), sample, encoder, progress)
    assert isinstance(found.forward, ModuleForward)
    found.forward.off_kernels = reason
    return found


def _load_weights(
    plan: Plan,
    sample: Sample,
    encoder: Encoder,
    progress: Progress,
    apart: Sequence[Wrong] = (),
    known: Verdict | None = None,
) -> _Found:
    """Read the weights into the model, and make and test its forward pass.

    Raises:
        ModelError, ExpansionError, MismatchError: see `engine.model.checks.gate.checked_forward`.
    """
    source, envelope, backend = plan.source, plan.envelope, plan.backend
    checkpoint, total = source.checkpoint, source.checkpoint.num_bytes
    model, compact, origins = _read_weights(plan, progress)
    with blaming(f"{checkpoint.folder / CONFIG_FILE} is not valid"):
        freeze_rope(model, envelope.max_model_len)
    shape, coding = plan.shape, Coding(source.entry.name, source.method, sample)
    coded = coding.find(
        model, envelope, shape, backend, encoder, progress, total, compact, origins, known
    )
    progress("testing the model", total, total)
    forward = checked_forward(
        model, envelope, shape, backend, coded, apart, is_known=known is not None
    )
    settled = _settle(plan, forward, coding, coded)
    coding.compare(forward, envelope, shape)
    return _Found(settled, forward, _with_what_is_left(settled, forward), coding)


def _settle(plan: Plan, forward: Forward, coding: Coding, coded: Coded | None) -> Plan:
    """Record the memory of a forward pass."""
    source, kept = plan.source, _kept_bytes(forward)
    if coded is not None or kept:
        plan = plan.settled((0 if coded is None else coded.saved_bytes) - kept)
    if source.quantize == "none" and source.method is not None:
        dtype = name_of(plan.dtype)
        logger.info(
            "%s is quantized by %s on disk, %s; it is served in %s, %s",
            source.entry.name,
            source.method,
            format_bytes(source.checkpoint.num_bytes),
            f"{dtype} and codes" if coding.packed_as else dtype,
            format_bytes(plan.needs.served_bytes),
        )
    return plan


def _with_what_is_left(plan: Plan, forward: Forward) -> EngineConfig:
    """The envelope of a settled plan. Its pool gets the memory saved by packed weights, less the
    originals that torch keeps.
    """
    envelope, backend = plan.envelope, plan.backend
    if backend == "torch":
        return envelope
    if backend == "triton" and isinstance(forward, ModuleForward):
        return plan.size("triton modules")
    if _kept_bytes(forward):
        return replace(envelope, num_blocks=plan.size(backend).num_blocks)
    if plan.source.method is None or not plan.shape.saved_bytes:
        return envelope
    return replace(envelope, num_blocks=max(envelope.num_blocks, plan.size(backend).num_blocks))


def _kept_bytes(forward: Forward) -> int:
    return forward.kept_bytes if isinstance(forward, ProgramForward) else 0


def _read_weights(
    plan: Plan, progress: Progress
) -> tuple[PreTrainedModel, CompactWeights, Origins]:
    """The model with its weights; those of them that stay in stored form, if kernels can multiply
    them so; and those that were stored as codes.
    """
    source = plan.source
    model_class = without(source.model_class, plan.traced.unread)
    kept = CompactWeights(plan.dtype)
    is_kept = plan.stays_packed
    dtype = loading_dtype(plan.dtype, source.device) if is_kept else plan.dtype
    while True:
        origins = Origins()
        model = load_weights(
            model_class,
            source.part,
            source.checkpoint.folder,
            plan.weights,
            dtype,
            source.device,
            progress,
            kept if is_kept else None,
            origins,
        )
        if not is_kept or kept.settle(model):
            return model, kept, origins
        name = source.entry.name
        logger.info("%s: its weights are unpacked, since transformers copies some of them", name)
        kept, is_kept, dtype = CompactWeights(plan.dtype), False, plan.dtype


def _key(plan: Plan, *facts: object) -> str:
    """A key of findings on a model's files that also depend on some facts."""
    source = plan.source
    return verdicts.key_of(
        (one.file for one in source.checkpoint.tensors),
        source.checkpoint.fingerprint,
        source.config.to_json_string(),
        source.key,
        plan.backend,
        *facts,
    )


def _store_findings(found: _Found, key: str, apart: Sequence[Wrong]) -> _Found:
    """Store the findings of the checks for the next loading. Quantized weights are compared with
    the originals each time.
    """
    forward = found.forward
    if not isinstance(forward, ProgramForward):
        return found
    verdicts.store(key, Verdict(tuple(apart), found.coding.loss, forward.saved))
    is_saved, forward.saved = forward.saved is not None, None
    path = _packed_path(found.plan, apart)
    if not is_saved or packed.find(path) is not None:
        return found  # as packed for another context length
    return _with_later(found, forward, path, None)


def _with_later(
    found: _Found, forward: ProgramForward, path: Path, mapped: MappedWeights | None
) -> _Found:
    """Have packed weights stored for the next loading, or the file that they are mapped from
    replaced by memory.
    """
    pieces, forward.pieces = forward.pieces, ()
    if mapped is not None:
        return replace(found, later=mapped.unmap)
    return replace(found, later=partial(packed.store, path, pieces)) if kept.KEPT else found


def _packed_path(plan: Plan, apart: Sequence[Wrong]) -> Path:
    """The file of a model's packed weights, which do not depend on the context length."""
    return plan.source.entry.packed_folder / f"{_key(plan, tuple(apart))}.weights"


def _restore(
    plan: Plan,
    sample: Sample,
    graph: SavedGraph,
    known: Verdict,
    progress: Progress,
) -> _Found | None:
    """The program of a model that was loaded before. Its packed weights are mapped from the cache,
    or packed while they are read. None if the graph does not match the model or is broken, which
    is logged.
    """
    source, meter = plan.source, None
    native = kernels()
    assert native is not None
    path = _packed_path(plan, known.apart)
    try:
        names, file = graph.names, packed.find(path)
        read = [one for one in plan.weights if one.name in names and one.blocks is not None]
        total = sum(one.num_bytes for one in read) if file is None else file.num_bytes
        meter = Meter("loading weights", total, progress)
        compact, memory = open_weights(read, plan.dtype, meter)
        coding = Coding(source.entry.name, source.method, sample)
        coded = coding.find_known(compact, plan.envelope, known.loss)
        mapped = None if file is None else file.map(native, meter)
        arena = Arena(native, None if mapped is None else mapped.pieces)
        forward = restore_program(
            graph,
            memory,
            plan.envelope,
            plan.shape,
            coded,
            known.apart,
            arena,
            # Mapped weights have the checksums of those with which an earlier load was verified.
            verify=mapped is None,
        )
    except ModelError:
        raise
    except Exception as error:
        if is_out_of_memory(error) or (meter is not None and meter.interrupted):
            raise
        reason = cause_of(error)
    else:
        meter.finish()
        settled = _settle(plan, forward, coding, coded)
        found = _Found(settled, forward, _with_what_is_left(settled, forward), coding)
        return _with_later(found, forward, path, mapped)
    # As in `_find_planned`, this runs outside the except block.
    gc.collect()
    with suppress(OSError):  # the packed weights may be at fault
        path.unlink()
    logger.warning(
        "%s: its saved graph cannot be used, and the model is checked again: %s",
        source.entry.name,
        reason,
    )
    return None


@dataclass(frozen=True, slots=True)
class _Started:
    """A runner with its pool.

    Attributes:
        envelope: what the pool was allocated for.
        measured: the device, as measured; None for a processor.
    """

    runner: ModelRunner
    envelope: EngineConfig
    measured: Device | None


def _start(found: _Found, progress: Progress) -> _Started:
    """Make a runner with its pool."""
    plan, forward, envelope = found.plan, found.forward, found.envelope
    source, shape, name = plan.source, plan.shape, plan.source.entry.name
    total = source.checkpoint.num_bytes
    # Before the pool takes the memory that this needs.
    device = measured(source.device, plan.dtype) if source.device.type == "cuda" else None
    progress("allocating the KV pool", total, total)
    is_asked = bool(source.request.swap_memory)
    if isinstance(forward, (ModuleForward, ProgramForward)):
        runner, envelope = with_swap(
            lambda config: TorchRunner(forward, config, shape), envelope, is_asked=is_asked
        )
        return _Started(runner, envelope, device)
    # The kernels can be imported only if triton is installed.
    from engine.model.gpu.forward import GpuForward
    from engine.model.gpu.sampler import why_not
    from engine.model.gpu.start import start_runner

    assert isinstance(forward, GpuForward)
    if reason := why_not(shape.vocab_size, source.device):
        logger.warning(
            "%s: torch chooses its tokens, one step at a time and without CUDA graphs, because "
            "our kernels do not: %s",
            name,
            reason,
        )
        return _Started(TorchRunner(forward, envelope, shape), envelope, device)
    bounds = pool_bounds(source.request, plan.needs, envelope)
    share = 1.0 if bounds.least == bounds.most else source.share
    on_gpu, envelope = start_runner(
        forward,
        envelope,
        shape,
        bounds,
        progress,
        name=name,
        left=plan.free - int(plan.free * share),
        swap_is_asked=is_asked,
    )
    return _Started(on_gpu, envelope, device)


def _describe(
    found: _Found,
    started: _Started,
    chat: _Chat,
    encoder: EncoderPool,
    grammars: Grammars,
    stop: Callable[[], None],
) -> LoadedModel:
    """Describe the loaded model for the host.

    Args:
        stop: see `_begin`.
    """
    source, shape, coding = found.plan.source, found.plan.shape, found.coding
    envelope, runner = started.envelope, started.runner
    card = shape.card(
        envelope,
        name=chat.name,
        architecture=source.model_class.__name__,
        attention=found.forward.attention,
        gpu_uuid=gpu_uuid(source.device),
    )
    card = replace(
        card,
        sampling=chat.sampling,
        sampling_sources=chat.sampling_sources,
        has_chat_template=chat.vocabulary.has_template,
        switches_thinking="enable_thinking" in chat.vocabulary.template,
        presets=source.entry.presets,
        quantize=source.quantize,
        packed_as=coding.packed_as,
        rounded_to=coding.rounded_to,
        loss=coding.loss,
        off_path=found.forward.off_path,
        off_kernels=found.forward.off_kernels,
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
    start = starting_knobs(envelope, shape, started.measured)
    return LoadedModel(
        key=source.key,
        card=card,
        config=envelope,
        shape=shape,
        runner=runner,
        codec=ChatCodec(
            chat.vocabulary,
            encoder,
            source.key,
            grammars,
            begins_thinking=source.entry.begins_thinking,
        ),
        knobs=start.knobs,
        knob_notes=start.notes,
        eos_token_ids=grammars.ends,
        swap_rate=runner.swap_rate,
        close=_closer(runner, encoder, stop),
    )


def _check_thinking(entry: ModelEntry, vocabulary: Vocabulary) -> None:
    """Raises ModelError if the entry's `begins_thinking` cannot be true."""
    if not entry.begins_thinking:
        return
    reason = ""
    if not vocabulary.has_template:
        reason = "the model has no chat template"
    elif Channels.find(vocabulary) is not None:
        reason = "the model thinks on a channel of its own (gpt-oss)"
    if reason:
        raise ModelError(
            f"begins_thinking of {entry.name} is true, and {reason}; leave it out", "model"
        )


def _turn_ends(encoder: EncoderPool, name: str) -> frozenset[int]:
    """The tokens that end a reply by the chat template; empty if that fails."""
    try:
        ends: list[int] = encoder.run(EndsJob())
        return frozenset(ends)
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
            f"{device} ran out of memory while {name} was loaded, with {format_bytes(before)} free "
            f"before and {format_bytes(free_memory(device))} now"
        ) from error


def _quiet() -> None:
    """Disable transformers' progress bars, and send its log to the program's."""
    log: Any = transformers.utils.logging
    log.disable_progress_bar()
    log.disable_default_handler()
    log.enable_propagation()


def _closer(
    runner: ModelRunner, encoder: EncoderPool, stop: Callable[[], None]
) -> Callable[[], None]:
    def close() -> None:
        stop()
        encoder.close()
        runner.close()
        gc.collect()  # as in `load_entry`
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            release_pinned()

    return close
