"""Build: the folder of a row's tiny random model, as it would come from the hub."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
)

from benchmarks.coverage.rows import Kind, Row, format_of
from benchmarks.coverage.texts import TEXTS
from benchmarks.coverage.tiny import randomise, tiny_config, tiny_tokenizer
from benchmarks.coverage.wrappers import WRAPPERS, wrapper_config
from engine.api.errors import cause_of

_SEED = 7
# A type may have a part that no value here makes small.
_MOST_PARAMETERS = 80_000_000


@dataclass(frozen=True, slots=True)
class Built:
    """A row's model on disk.

    Attributes:
        folder: what is loaded.
        reference: a folder of plain weights that are the same numbers, for transformers.
        lacks: why the weights are not those of such a model; empty if they are. Then the folder has
            the configuration of one, and shows what is said to it.
    """

    folder: Path
    reference: Path
    lacks: str = ""


def build(row: Row, folder: Path) -> Built:
    """Write a row's model into an empty folder, the same one each time.

    Raises:
        Exception: transformers cannot make or save it.
    """
    model, reference = folder / "model", folder / "reference"
    if row.kind is Kind.TEXT:
        overrides = TEXTS[row.name]
        if overrides is None:
            _write_config_only(row.name, model)
            return Built(model, model, "none this small can be made")
        _write_text(row.name, overrides, model)
        return Built(model, model)
    if row.kind is Kind.WRAPPER:
        return Built(model, model, _write_wrapper(row.name, model))
    form = format_of(row)
    name, overrides = form.text
    _write_text(name, {**(TEXTS[name] or {}), **overrides}, model)
    shutil.copytree(model, reference)
    form.apply(model, reference)
    return Built(model, reference, "" if form.store else "such weights cannot be made here")


def model_class(config: PreTrainedConfig) -> Any:
    """The class of transformers that makes, loads and generates with such a model."""
    # The mapping of an automatic class is not public, and nothing else tells what it covers.
    if type(config) in AutoModelForImageTextToText._model_mapping:
        return AutoModelForImageTextToText
    return AutoModelForCausalLM


def _write_text(name: str, overrides: Mapping[str, Any], folder: Path) -> None:
    _write(tiny_config(name.partition("@")[0], overrides), folder)


def _write_wrapper(name: str, folder: Path) -> str:
    """Returns why there is only a configuration; empty if there is all of it."""
    try:
        config = wrapper_config(name, WRAPPERS[name])
        with torch.device("meta"):
            parts = model_class(config).from_config(copy.deepcopy(config)).parameters()
            size = sum(part.numel() for part in parts)
        if size > _MOST_PARAMETERS:
            raise ValueError(f"{size / 1e6:.0f} M parameters")
        _write(config, folder)
    except Exception as error:  # each class refuses in its own way
        shutil.rmtree(folder, ignore_errors=True)
        _write_config_only(name, folder)
        return cause_of(error)
    return ""


def _write(config: PreTrainedConfig, folder: Path) -> None:
    torch.manual_seed(_SEED)
    made: PreTrainedModel = model_class(config).from_config(config, dtype=torch.float32).eval()
    randomise(made).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)


def _write_config_only(name: str, folder: Path) -> None:
    """A type's default configuration beside weights of another type, which have as many layers and
    sides as long as any default asks for, and little in them."""
    config = LlamaConfig(
        vocab_size=300_000,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=128,
        num_attention_heads=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    CONFIG_MAPPING[name]().save_pretrained(folder)
