"""Folder: reads what a model folder says beside its weights, and checks each file before that."""

from __future__ import annotations

import copy
import hashlib
import os
import re
import reprlib
from pathlib import Path
from typing import Any

import transformers
from transformers import CONFIG_MAPPING, AutoConfig, AutoTokenizer, PreTrainedConfig

from engine.api.config import DTYPES
from engine.api.errors import EngineError, ModelError
from engine.api.sampling import CHOOSING, SamplingParams
from engine.model.blame import blaming
from engine.model.checkpoint import CONFIG_FILE, Checkpoint
from engine.model.files import (
    CONFIG_BYTES,
    TEMPLATE_BYTES,
    TOKENIZER_BYTES,
    check_file,
    read_file,
    read_json,
)
from engine.model.quantized.gguf import GgufFile
from engine.model.registry import ModelEntry
from engine.model.rope import scaled_positions
from engine.model.sizes import MOST_POSITIONS, check_sizes
from engine.text.vocabulary import Vocabulary

_GENERATION_FILE = "generation_config.json"
_REGISTRY = "models.toml"  # the user's own has its name too, whatever its file is called
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model")
_TEMPLATE_FILE = "chat_template.json"  # where processors of older versions keep it
_TEMPLATE_FOLDER = "additional_chat_templates"

# What transformers may open of a folder, by the names that its tokenizers look for.
_OPENED = re.compile(r".*\.(json|jinja|txt|model|tiktoken|bpe|tokenizer)(\..*)?", re.DOTALL)


def check_folder(folder: Path) -> None:
    """Check all files of a folder that transformers may open.

    Raises:
        ModelError: one is no regular file, or larger than its kind may be.
    """
    templates = folder / _TEMPLATE_FOLDER
    try:
        paths = [folder / name for name in os.listdir(folder)]
        if templates.is_dir():
            paths += [templates / name for name in os.listdir(templates)]
        # A link to nothing is no file to transformers, and neither is a directory.
        opened = [
            path
            for path in sorted(paths)
            if _OPENED.fullmatch(path.name) and path.exists() and not path.is_dir()
        ]
    except OSError as error:
        raise ModelError(f"{folder} cannot be read: {error.strerror}") from None
    for path in opened:
        check_file(path, _most_bytes(path.name))


def _most_bytes(name: str) -> int:
    if name in (CONFIG_FILE, _GENERATION_FILE):
        return CONFIG_BYTES
    is_template = name.endswith(".jinja") or name == _TEMPLATE_FILE
    return TEMPLATE_BYTES if is_template else TOKENIZER_BYTES


def read_stated(folder: Path, gguf: GgufFile | None = None) -> dict[str, Any]:
    """The configuration as it stands in its file; its kind of model and its dtype are known ones.

    Args:
        gguf: the file that states it where the folder has none of its own.

    Raises:
        ModelError: it is missing or broken, or names another kind of model or of numbers.
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
    """The configuration as transformers understands it.

    Args:
        stated: as `read_stated` gives it.
        checkpoint: of the same folder, which bounds the sizes in it.

    Raises:
        ModelError: transformers refuses it, or a size in it cannot be that of the weights.
    """
    path = folder / CONFIG_FILE
    check_folder(folder)
    check_sizes(stated, checkpoint, path)
    with blaming(f"{path} is not valid"):
        if not path.exists():  # a GGUF file stated it
            return AutoConfig.for_model(**copy.deepcopy(stated))
        # A checkpoint's own code is never run.
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    return config


def read_tokenizer(
    folder: Path, gguf: GgufFile | None = None, *, decodes_only: bool = False
) -> Any:
    """The tokenizer of a folder that `read_config` has checked.

    Args:
        gguf: the file that has one where the folder has none of its own.
        decodes_only: whether it need not encode before it was pickled and unpickled.

    Raises:
        ModelError: there is none, or transformers refuses it.
    """
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        if gguf is not None:
            return gguf.tokenizer(decodes_only=decodes_only)
        raise ModelError(f"{folder} has no tokenizer: none of {', '.join(_TOKENIZER_FILES)}")
    with blaming(f"the tokenizer in {folder} is broken"):
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    own = tokenizer.chat_template
    if (own is None or not str(own).strip()) and (found := _read_template(folder)) is not None:
        tokenizer.chat_template = found
    return tokenizer


def _read_template(folder: Path) -> str | dict[str, str] | None:
    """The chat template that stands in a file of its own, or several by their names; None if there
    is none.

    Raises:
        ModelError: the file is broken.
    """
    path = folder / _TEMPLATE_FILE
    stated = (read_json(path, TEMPLATE_BYTES) or {}).get("chat_template")
    texts = stated.values() if isinstance(stated, dict) else () if stated is None else (stated,)
    if not all(isinstance(text, str) for text in texts):
        raise ModelError(
            f"{path} has chat_template {reprlib.repr(stated)}; it must be a text, or a map of "
            "names to texts"
        )
    template: str | dict[str, str] | None = stated
    return template


def read_vocabulary(folder: Path, tokenizer: Any) -> Vocabulary:
    """The decoding side of a tokenizer.

    Raises:
        ModelError: the tokenizer raises something.
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
    """The longest sequence that a model can represent, in tokens.

    Raises:
        ModelError: the configuration does not say it, or has a scaling of rotations that reaches
            further than any model does.
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
    entry: ModelEntry, generation: dict[str, Any], folder: Path
) -> tuple[SamplingParams, dict[str, str]]:
    """Plain sampling, overridden by what the registry and the checkpoint recommend.

    How a token is chosen is taken from one of them, the registry if it says anything of that, for
    its values are tuned to each other. Of all else the registry's go before the checkpoint's.

    Returns:
        the sampling, and for each parameter that is recommended the name of the file that does so.

    Raises:
        ModelError: the checkpoint recommends what is not allowed.
    """
    names = (*CHOOSING, "repetition_penalty")
    stated = {name: generation[name] for name in names if generation.get(name) is not None}
    if generation.get("do_sample") is False:
        stated = {"temperature": 0.0} | {
            name: value for name, value in stated.items() if name not in CHOOSING
        }
    if not CHOOSING.isdisjoint(entry.sampling):
        stated = {name: value for name, value in stated.items() if name not in CHOOSING}
    try:
        sampling = SamplingParams().override(stated)
    except EngineError as error:
        raise ModelError(f"{folder / _GENERATION_FILE}: {error.message}") from None
    sources = dict.fromkeys(stated, _GENERATION_FILE) | dict.fromkeys(entry.sampling, _REGISTRY)
    return sampling.override(entry.sampling), sources


def eos_token_ids(
    folder: Path,
    generation: dict[str, Any],
    config: PreTrainedConfig,
    tokenizer: Any,
    gguf: GgufFile | None = None,
) -> frozenset[int]:
    """All token ids that generation configuration, configuration, tokenizer or a GGUF file take for
    an end.

    Many checkpoints name the token that ends a turn of a chat in only one of them, or in none
    (`engine.text.encoder.ChatEncoder.turn_ends` finds it in the chat template). The text part of a
    configuration counts if neither the whole nor the generation configuration names one: what it
    does not state are defaults of its class, which know nothing of the whole.

    Raises:
        ModelError: one of them names something else than token ids.
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

    Weights are compared by their headers and sizes only.
    """
    digest = hashlib.sha256(f"{name}\n{fingerprint}\n{dtype}\n".encode())
    for file in _TOKENIZER_FILES:
        if (folder / file).is_file():
            digest.update(read_file(folder / file, TOKENIZER_BYTES))
    return f"{name}-{dtype}-{digest.hexdigest()[:16]}"
