"""Methods: the supported formats of quantized checkpoints, by transformers' names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from transformers import PreTrainedConfig

from engine.api.errors import ModelError
from engine.model.files.checkpoint import CONFIG_FILE, Checkpoint
from engine.model.files.quantized import (
    auto_round,
    awq,
    bitsandbytes,
    compressed,
    fp8,
    gptq,
    modelopt,
    mxfp4,
    torchao,
)
from engine.model.files.reading import CONFIG_BYTES, read_json
from engine.model.files.stored import StoredWeight, plain_weights

_KEY = "quantization_config"
_MODELOPT_FILE = "hf_quant_config.json"
_METHODS: dict[str, Callable[[dict[str, Any], Checkpoint], Iterator[StoredWeight]]] = {
    "fp8": fp8.weights,
    "mxfp8": fp8.weights,
    "mxfp4": mxfp4.weights,
    "compressed-tensors": compressed.weights,
    "bitsandbytes": bitsandbytes.weights,
    "awq": awq.weights,
    "gptq": gptq.weights,
    "auto-round": auto_round.weights,
    "modelopt": modelopt.weights,
    "torchao": torchao.weights,
}


def method_of(stated: dict[str, Any], checkpoint: Checkpoint) -> str | None:
    """The quantization method of a checkpoint; None if it has none.

    Args:
        stated: the configuration as stated in the file.

    Raises:
        ModelError: its quantization is not supported.
    """
    found = _stated(stated, checkpoint)
    if found is None:
        return None
    method = found.get("quant_method") if isinstance(found, dict) else None
    if isinstance(found, dict) and method is None and "load_in_4bit" in found:
        method = "bitsandbytes"  # the form from before methods had names
    if not isinstance(method, str) or method not in _METHODS:
        raise ModelError(
            f"{checkpoint.folder / CONFIG_FILE} is quantized by {method!r}; read are "
            f"{', '.join(_METHODS)}, and GGUF files"
        )
    return method


def stored_weights(stated: dict[str, Any], checkpoint: Checkpoint) -> tuple[StoredWeight, ...]:
    """The weights of a checkpoint by the model's names. None is read yet.

    Args:
        stated: the configuration as stated in the file.

    Raises:
        ModelError: its quantization is not supported; a library is missing for it; or its tensors
            are not those of the format.
    """
    method = method_of(stated, checkpoint)
    if method is None:
        return tuple(plain_weights(checkpoint))
    return tuple(_METHODS[method](_stated(stated, checkpoint), checkpoint))


def forget(config: PreTrainedConfig) -> None:
    """Remove the quantization from a configuration."""
    for one in (config, config.get_text_config()):
        if hasattr(one, _KEY):
            delattr(one, _KEY)


def _stated(stated: dict[str, Any], checkpoint: Checkpoint) -> Any:
    """The stated quantization, of the whole or of its text model; or ModelOpt's, which used a
    separate file before configurations had a part for it.
    """
    text = stated.get("text_config")
    inner = text.get(_KEY) if isinstance(text, dict) else None
    found = stated.get(_KEY, inner)
    if found is None and read_json(checkpoint.folder / _MODELOPT_FILE, CONFIG_BYTES) is not None:
        return {"quant_method": "modelopt"}  # its tensors show the rest
    return found
