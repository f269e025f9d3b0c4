"""load_model: from a name to a model that runs."""

from __future__ import annotations

import gc
import hashlib
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoConfig, AutoTokenizer, PreTrainedConfig

from engine.client import LoadRequest
from engine.config import DTYPES, EngineConfig
from engine.errors import EngineError, ModelError
from engine.knobs import Knobs
from engine.loading import LoadedModel, Progress
from engine.model.checkpoint import CONFIG_FILE, open_checkpoint
from engine.model.device import (
    default_share,
    free_memory,
    is_out_of_memory,
    pick_device,
    pick_dtype,
)
from engine.model.footprint import footprint_of
from engine.model.forward import Forward, cache_shape, pick_backend
from engine.model.gate import checked_forward, find_class
from engine.model.hub import download
from engine.model.memory import MemoryNeeds, plan_memory, show_bytes
from engine.model.program.verify import MismatchError
from engine.model.registry import ModelEntry, Registry
from engine.model.rope import freeze_rope
from engine.model.runner import TorchRunner
from engine.model.trace import trace
from engine.model.weights import load_weights
from engine.request import SamplingParams
from engine.snapshot import ModelCard
from engine.text.codec import ChatCodec

logger = logging.getLogger(__name__)

_GENERATION_FILE = "generation_config.json"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model")


def load_model(request: LoadRequest, progress: Progress) -> LoadedModel:
    """Find, check and load a model (an `engine.loading.ModelLoader`).

    All that can be refused without the weights is refused before they are read. A folder, and a hub
    model that is in the local cache, are loaded without the network.
    """
    _quiet()
    # transformers' modules and configs refer to each other: a model whose loading failed holds its
    # memory until the collector comes by, and would count against the one that is loaded instead.
    gc.collect()
    entry = Registry.read(request.models_file).find(request.model)
    folder = entry.local_folder() or _fetch(entry, progress)
    progress("checking the model")
    config = _read_config(folder)
    model_class = find_class(config)
    checkpoint = open_checkpoint(folder)
    device = pick_device(request.device)
    dtype = pick_dtype(request.dtype, entry.dtype, checkpoint.dtype, device)
    traced = trace(model_class, config, dtype)
    needs = MemoryNeeds(
        name=entry.name,
        shape=traced.shape,
        weight_bytes=checkpoint.num_bytes_as(dtype.itemsize),
        layer_width=traced.layer_width,
        max_positions=_max_positions(config, folder),
        context_length=entry.context_length,
    )

    smallest = EngineConfig(
        num_blocks=1,
        max_model_len=1,
        dtype=str(dtype).removeprefix("torch."),
        device=str(device),
    )
    backend = pick_backend(cache_shape(smallest, traced.shape))

    def plan(backend: str) -> EngineConfig:
        return plan_memory(
            request,
            needs,
            footprint_of(backend, device),
            device=smallest.device,
            dtype=smallest.dtype,
            free=free_memory(device),
            share=entry.memory_share or default_share(device),
        )

    envelope = plan(backend)
    tokenizer = _read_tokenizer(folder)
    generation = _read_generation(folder)
    sampling = _default_sampling(entry, generation, folder)
    key = _model_key(entry.name, checkpoint.fingerprint, folder, envelope.dtype)

    with _telling_of_memory(entry.name, device):

        def load(backend: str, envelope: EngineConfig) -> Forward:
            model = load_weights(model_class, config, checkpoint, dtype, device, progress)
            progress("testing the model", checkpoint.num_bytes, checkpoint.num_bytes)
            freeze_rope(model, envelope.max_model_len)
            return checked_forward(model, envelope, traced.shape, backend)

        forward: Forward | None = None
        try:
            forward = load(backend, envelope)
        except MismatchError as error:
            # By its text: a log that kept the error would keep its frames, and the spent model.
            reason = str(error)
            logger.error("%s; the native kernels are not used for %s", reason, entry.name)
        if forward is None:
            # Here, where the error is gone, and the model with it.
            gc.collect()
            envelope = plan("torch")
            forward = load("torch", envelope)
        progress("allocating the KV pool", checkpoint.num_bytes, checkpoint.num_bytes)
        runner = TorchRunner(forward, envelope, traced.shape)
    card = ModelCard(
        name=entry.name,
        architecture=model_class.__name__,
        num_params=traced.shape.num_params,
        dtype=envelope.dtype,
        device=envelope.device,
        attention=forward.attention,
        max_model_len=envelope.max_model_len,
        weight_bytes=traced.shape.weight_bytes,
        kv_bytes_per_token=traced.shape.kv_bytes_per_token,
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
    return LoadedModel(
        key=key,
        card=card,
        config=envelope,
        shape=traced.shape,
        runner=runner,
        codec=ChatCodec(tokenizer, key),
        sampling=sampling,
        knobs=_starting_knobs(envelope),
        eos_token_ids=_eos_token_ids(generation, config, tokenizer),
        close=_closer(runner),
    )


@contextmanager
def _telling_of_memory(name: str, device: torch.device) -> Iterator[None]:
    """Make a failed allocation a ModelError with the numbers."""
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


def _fetch(entry: ModelEntry, progress: Progress) -> Path:
    if entry.hub_id is not None:
        return download(entry.hub_id, progress)
    assert entry.folder is not None
    return entry.folder  # incomplete: what reads it says what is missing


def _quiet() -> None:
    """Let transformers draw no bars, and log where the program logs."""
    log: Any = transformers.utils.logging
    log.disable_progress_bar()
    log.disable_default_handler()
    log.enable_propagation()


def _read_config(folder: Path) -> PreTrainedConfig:
    path = folder / CONFIG_FILE
    stated = _read_json(path)
    if stated is None:
        raise ModelError(f"{path} is missing")
    kind = stated.get("model_type")
    if kind not in CONFIG_MAPPING:
        raise ModelError(
            f"{path} has model_type {kind!r}, which transformers {transformers.__version__} does "
            "not know"
        )
    dtype = stated.get("dtype", stated.get("torch_dtype"))
    if dtype is not None and dtype not in DTYPES:
        raise ModelError(f"{path} has dtype {dtype!r}; allowed are {', '.join(DTYPES)}")
    try:
        # A checkpoint's own code is never run.
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:
        raise ModelError(f"{path} is not valid: {_first_line(error)}") from error
    return config


def _read_tokenizer(folder: Path) -> Any:
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise ModelError(f"{folder} has no tokenizer: none of {', '.join(_TOKENIZER_FILES)}")
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise ModelError(f"the tokenizer in {folder} is broken: {_first_line(error)}") from error


def _read_generation(folder: Path) -> dict[str, Any]:
    return _read_json(folder / _GENERATION_FILE) or {}


def _read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None without the file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} is broken: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} is broken: it holds no JSON object")
    return value


def _max_positions(config: PreTrainedConfig, folder: Path) -> int:
    positions = getattr(config, "max_position_embeddings", None)
    if not isinstance(positions, int):
        raise ModelError(f"{folder / CONFIG_FILE} does not say max_position_embeddings")
    return positions


def _default_sampling(
    entry: ModelEntry, generation: dict[str, Any], folder: Path
) -> SamplingParams:
    """What the registry recommends, else the checkpoint, else plain sampling."""
    if entry.sampling:
        return SamplingParams().override(entry.sampling)
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    stated = {name: generation[name] for name in names if generation.get(name) is not None}
    if generation.get("do_sample") is False:
        stated = {"temperature": 0.0} | {
            name: value for name, value in stated.items() if name == "repetition_penalty"
        }
    try:
        return SamplingParams().override(stated)
    except EngineError as error:
        raise ModelError(f"{folder / _GENERATION_FILE}: {error.message}") from None


def _eos_token_ids(
    generation: dict[str, Any], config: PreTrainedConfig, tokenizer: Any
) -> frozenset[int]:
    """All that any of them takes for an end: many checkpoints name the chat's end in one place."""
    found: set[int] = set()
    for stated in (generation.get("eos_token_id"), config.eos_token_id, tokenizer.eos_token_id):
        found.update(stated if isinstance(stated, list) else [] if stated is None else [stated])
    return frozenset(found)


def _model_key(name: str, fingerprint: str, folder: Path, dtype: str) -> str:
    """Equal for equal weights, tokenizer and type; weights count by their headers and sizes."""
    digest = hashlib.sha256(f"{name}\n{fingerprint}\n{dtype}\n".encode())
    for file in _TOKENIZER_FILES:
        if (folder / file).is_file():
            digest.update((folder / file).read_bytes())
    return f"{name}-{dtype}-{digest.hexdigest()[:16]}"


def _starting_knobs(envelope: EngineConfig) -> Knobs:
    knobs = Knobs()
    seqs = min(knobs.max_num_seqs, envelope.max_num_seqs)
    tokens = min(max(knobs.max_num_batched_tokens, seqs), envelope.max_num_batched_tokens)
    return replace(knobs, max_num_seqs=seqs, max_num_batched_tokens=tokens)


def _closer(runner: TorchRunner) -> Callable[[], None]:
    def close() -> None:
        runner.close()
        gc.collect()  # as in `load_model`
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    return close


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
