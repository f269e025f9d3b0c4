"""Folder: reads a model folder's files beside the weights, and checks each file first."""

from __future__ import annotations

import copy
import hashlib
import os
import re
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers
from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig

from engine.api.config import DTYPES
from engine.api.errors import EngineError, ModelError
from engine.api.sampling import CHOOSING, SamplingParams
from engine.model.files.blame import blaming
from engine.model.files.checkpoint import CONFIG_FILE, Checkpoint
from engine.model.files.quantized.gguf import GgufFile
from engine.model.files.reading import (
    CONFIG_BYTES,
    TEMPLATE_BYTES,
    TOKENIZER_BYTES,
    check_file,
    read_file,
    read_json,
)
from engine.model.files.sizes import MOST_POSITIONS, check_sizes, scaled_positions
from engine.model.files.tokenizer import TEMPLATE_FILE, TOKENIZER_FILES
from engine.text.vocabulary import Vocabulary

_GENERATION_FILE = "generation_config.json"
_REGISTRY = "models.toml"  # also the name for the user's own registry, whatever its file is called
_TEMPLATE_FOLDER = "additional_chat_templates"

# Files that transformers may open in a folder, by the names that its tokenizers look for.
_OPENED = re.compile(r".*\.(json|jinja|txt|model|tiktoken|bpe|tokenizer)(\..*)?", re.DOTALL)


def check_folder(folder: Path) -> list[Path]:
    """Check all files of a folder that transformers may open.

    Returns:
        these files.

    Raises:
        ModelError: one is not a regular file, or exceeds the size limit of its kind.
    """
    templates = folder / _TEMPLATE_FOLDER
    try:
        paths = [folder / name for name in os.listdir(folder)]
        if templates.is_dir():
            paths += [templates / name for name in os.listdir(templates)]
        # transformers ignores a broken link and a directory.
        opened = [
            path
            for path in sorted(paths)
            if _OPENED.fullmatch(path.name) and path.exists() and not path.is_dir()
        ]
    except OSError as error:
        raise ModelError(f"{folder} cannot be read: {error.strerror}") from None
    for path in opened:
        check_file(path, _most_bytes(path.name))
    return opened


def _most_bytes(name: str) -> int:
    if name in (CONFIG_FILE, _GENERATION_FILE):
        return CONFIG_BYTES
    is_template = name.endswith(".jinja") or name == TEMPLATE_FILE
    return TEMPLATE_BYTES if is_template else TOKENIZER_BYTES


def read_stated(folder: Path, gguf: GgufFile | None = None) -> dict[str, Any]:
    """The configuration as stated in its file, with a known kind of model and dtype.

    Args:
        gguf: the file that states it if the folder has no configuration.

    Raises:
        ModelError: it is missing or broken, or names an unknown kind of model or dtype.
    """
    path = folder / CONFIG_FILE
    stated = read_json(path, CONFIG_BYTES)
    if stated is None and gguf is not None:
        stated, path = gguf.read_stated(), gguf.path
    if stated is None:
        raise ModelError(f"{path} is missing")
    kind = stated.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        raise ModelError(
            f"{path} has model_type {kind!r}, which transformers {transformers.__version__} does "
            "not know"
        )
    dtype = stated.get("dtype", stated.get("torch_dtype"))
    if dtype is not None and dtype not in DTYPES:
        raise ModelError(f"{path} has dtype {dtype!r}; allowed are {', '.join(DTYPES)}")
    return stated


def read_config(folder: Path, stated: dict[str, Any], checkpoint: Checkpoint) -> PreTrainedConfig:
    """The configuration as transformers reads it in a folder that `check_folder` has checked.

    Args:
        stated: the result of `read_stated`.
        checkpoint: the same folder's checkpoint, which bounds the sizes.

    Raises:
        ModelError: transformers refuses it, or a size does not match the weights.
    """
    path = folder / CONFIG_FILE
    check_sizes(stated, checkpoint, path)
    with blaming(f"{path} is not valid"):
        if not path.exists():  # a GGUF file stated it
            return AutoConfig.for_model(**copy.deepcopy(stated))
        # Code in a checkpoint is never run.
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    return config


def read_vocabulary(folder: Path, tokenizer: Any) -> Vocabulary:
    """Make the decoding side of a tokenizer.

    Raises:
        ModelError: the tokenizer fails.
    """
    with blaming(f"the tokenizer in {folder} is broken"):
        return Vocabulary(tokenizer)


def read_generation(folder: Path) -> dict[str, Any]:
    """The checkpoint's generation configuration; empty if it has none.

    Raises:
        ModelError: the file cannot be read, or is broken.
    """
    return read_json(folder / _GENERATION_FILE, CONFIG_BYTES) or {}


def max_positions(config: PreTrainedConfig, folder: Path) -> int:
    """The longest sequence that a model supports, in tokens.

    Raises:
        ModelError: the configuration does not state it, or scales rotations further than any model
            does.
    """
    text = config.get_text_config()
    positions = getattr(text, "max_position_embeddings", None)
    if not isinstance(positions, int):
        raise ModelError(f"{folder / CONFIG_FILE} does not say max_position_embeddings")
    reached = scaled_positions(text)
    if reached > MOST_POSITIONS:
        raise ModelError(
            f"{folder / CONFIG_FILE} is not valid: its rope_parameters reach {reached} positions; "
            f"at most {MOST_POSITIONS} are allowed"
        )
    return max(positions, reached)


def default_sampling(
    own: Mapping[str, Any], generation: dict[str, Any], folder: Path
) -> tuple[SamplingParams, dict[str, str]]:
    """Plain sampling, overridden by the recommendations of the registry and the checkpoint.

    The parameters that choose a token come from only one of them, the registry if it states any,
    because their values are tuned to each other. For all others the registry takes precedence over
    the checkpoint.

    Args:
        own: the registry's recommendations.
        generation: the checkpoint's generation configuration.

    Returns:
        the sampling, and for each recommended parameter the name of the file that recommends it.

    Raises:
        ModelError: the checkpoint recommends an invalid value.
    """
    names = (*CHOOSING, "repetition_penalty")
    stated = {name: generation[name] for name in names if generation.get(name) is not None}
    if generation.get("do_sample") is False:
        stated = {"temperature": 0.0} | {
            name: value for name, value in stated.items() if name not in CHOOSING
        }
    if not CHOOSING.isdisjoint(own):
        stated = {name: value for name, value in stated.items() if name not in CHOOSING}
    try:
        sampling = SamplingParams().override(stated)
    except EngineError as error:
        raise ModelError(f"{folder / _GENERATION_FILE}: {error.message}") from None
    sources = dict.fromkeys(stated, _GENERATION_FILE) | dict.fromkeys(own, _REGISTRY)
    return sampling.override(own), sources


def eos_token_ids(
    folder: Path,
    generation: dict[str, Any],
    config: PreTrainedConfig,
    tokenizer: Any,
    gguf: GgufFile | None = None,
) -> frozenset[int]:
    """All token ids that the generation configuration, configuration, tokenizer or a GGUF file name
    as an end.

    Many checkpoints name the token that ends a turn in only one of them, or in none
    (`engine.text.encoder.ChatEncoder.turn_ends` finds it in the chat template). The text part of a
    configuration counts only if neither the whole nor the generation configuration names one:
    values that it does not state are defaults of its class, which know nothing of the whole.

    Raises:
        ModelError: one of them names something other than token ids.
    """
    found: set[int] = set() if gguf is None else set(gguf.end_token_ids)
    generated = generation.get("eos_token_id")
    configured = getattr(config, "eos_token_id", None)
    if generated is None and configured is None:
        configured = getattr(config.get_text_config(), "eos_token_id", None)
    for where, stated in (
        (folder / _GENERATION_FILE, generated),
        (folder / CONFIG_FILE, configured),
        (f"the tokenizer in {folder}", tokenizer.eos_token_id),
    ):
        ids = stated if isinstance(stated, list) else [] if stated is None else [stated]
        if not all(type(one) is int for one in ids):
            raise ModelError(
                f"{where} has eos_token_id {reprlib.repr(stated)}; it must be a token's number, or "
                "a list of them"
            )
        found.update(ids)
    return frozenset(found)


def model_key(name: str, fingerprint: str, folder: Path, dtype: str) -> str:
    """A key that is equal for models of equal name, weights, tokenizer and type.

    Weights are compared only by their headers and sizes.
    """
    digest = hashlib.sha256(f"{name}\n{fingerprint}\n{dtype}\n".encode())
    for file in TOKENIZER_FILES:
        if (folder / file).is_file():
            digest.update(read_file(folder / file, TOKENIZER_BYTES))
    return f"{name}-{dtype}-{digest.hexdigest()[:16]}"
