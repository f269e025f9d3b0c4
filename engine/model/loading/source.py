"""Source: the files of a model, read as far as loading needs them beside the weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from engine.api.client import LoadRequest
from engine.model.catalog.registry import ModelEntry
from engine.model.checks.gate import find_class
from engine.model.files.blame import blaming
from engine.model.files.checkpoint import CONFIG_FILE, Checkpoint, find_gguf, open_checkpoint
from engine.model.files.folder import check_folder, model_key, read_config, read_stated
from engine.model.files.gguf.tokenizer import TokenizerRecipe
from engine.model.files.quantized.gguf import GgufFile
from engine.model.files.quantized.methods import forget, method_of, stored_weights
from engine.model.files.stored import StoredWeight
from engine.model.files.tokenizer import FolderTokenizer, has_tokenizer
from engine.model.machine.device import default_share, pick_device, pick_dtype, use_device
from engine.model.tracing.text_part import language_part, text_config
from engine.text.pool import EncoderPool


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The files of a model, and the choices that need no more than these.

    Attributes:
        folder: the folder of the files.
        gguf: the GGUF file; None for a folder of safetensors.
        stated: the configuration as the files state it.
        checkpoint: the places of the stored tensors.
        method: the format in which the checkpoint is quantized; None if it is not.
        quantize: the format to which weights are quantized, or `none`.
        device, dtype: where and in which type the model computes.
        key: see `engine.serving.loading.LoadedModel`.
        config: the configuration of the language model.
        model_class, part: the class that computes it, with its configuration.
        recipe: a tokenizer, which a process builds when it unpickles this.
    """

    request: LoadRequest
    entry: ModelEntry
    folder: Path
    gguf: GgufFile | None
    stated: dict[str, Any]
    checkpoint: Checkpoint
    method: str | None
    quantize: str
    device: torch.device
    dtype: torch.dtype
    key: str
    config: PreTrainedConfig
    model_class: type[PreTrainedModel]
    part: PreTrainedConfig
    recipe: TokenizerRecipe | FolderTokenizer

    @classmethod
    def read(
        cls,
        request: LoadRequest,
        entry: ModelEntry,
        path: Path,
        encoder: EncoderPool | None = None,
    ) -> Source:
        """Read a model's files.

        Args:
            path: its folder, or its GGUF file.
            encoder: gets the tokenizer as soon as there is one; None if nothing will be encoded.

        Raises:
            ModelError, InvalidConfigError: see `engine.serving.loading.ModelLoader`.
        """
        file = find_gguf(path)
        gguf = None if file is None else GgufFile(file)
        folder = path if file is None else file.parent
        stated = read_stated(folder, gguf)
        checkpoint = open_checkpoint(folder) if gguf is None else gguf.checkpoint
        device = pick_device(request.device)
        use_device(device)
        dtype = pick_dtype(request.dtype, entry.dtype, checkpoint.dtype, device)
        quantize = request.quantize or entry.quantize
        precision = name_of(dtype) if quantize == "none" else f"{name_of(dtype)}-{quantize}"
        key = model_key(entry.name, checkpoint.fingerprint, folder, precision)
        opened = check_folder(folder)
        own = gguf is None or has_tokenizer(folder)
        recipe = FolderTokenizer(folder, opened) if own or gguf is None else gguf.tokenizer_recipe
        if encoder is not None:
            # At once, because the encoding process takes longest: 0.7 s for 262,144 tokens.
            encoder.begin(recipe, key, begins_thinking=entry.begins_thinking)
        method = method_of(stated, checkpoint) if gguf is None else gguf.kind
        config = language_part(read_config(folder, stated, checkpoint))
        forget(config)
        with blaming(f"{folder / CONFIG_FILE} is not valid"):
            model_class = find_class(config)
            part = text_config(model_class, config)
        return cls(
            request=request,
            entry=entry,
            folder=folder,
            gguf=gguf,
            stated=stated,
            checkpoint=checkpoint,
            method=method,
            quantize=quantize,
            device=device,
            dtype=dtype,
            key=key,
            config=config,
            model_class=model_class,
            part=part,
            recipe=recipe,
        )

    @property
    def share(self) -> float:
        """The usable share of the free device memory, from 0 to 1."""
        return self.entry.memory_share or default_share(self.device)

    def weights(self) -> tuple[StoredWeight, ...]:
        """The stored weights by the model's names.

        Raises:
            ModelError: their names are unknown, or they are stored in an unsupported format.
        """
        if self.gguf is None:
            return stored_weights(self.stated, self.checkpoint)
        return self.gguf.stored_weights(self.config)


def name_of(dtype: torch.dtype) -> str:
    """A type as `EngineConfig` names it."""
    return str(dtype).removeprefix("torch.")
