"""compressed-tensors: integers of few bits, FP8, NVFP4 and MXFP4, as far as its library
decompresses them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn

from engine.api.errors import ModelError
from engine.model.files.blame import blaming
from engine.model.files.checkpoint import CONFIG_FILE, Checkpoint
from engine.model.files.quantized.grouping import by_module
from engine.model.files.quantized.library import library
from engine.model.files.stored import StoredWeight, plain

EXTRA = "compressed-tensors"
_MARKS = ("weight_packed", "weight_scale")
# Scales of a layer's inputs and its cache are useless for an unquantized model.
_DROPPED = ("input_", "output_", "q_scale", "k_scale", "v_scale")


def weights(stated: dict[str, Any], checkpoint: Checkpoint) -> Iterator[StoredWeight]:
    """The weights of such a checkpoint.

    Raises:
        ModelError: the library is missing or does not support the format; the model was transformed
            or pruned in a way that is not undone here; a module has no scheme.
    """
    quantization = library("compressed_tensors.quantization", EXTRA, "compressed-tensors")
    path = checkpoint.folder / CONFIG_FILE
    for key in ("transform_config", "sparsity_config"):
        part = stated.get(key)
        if part and not (isinstance(part, dict) and part.get("format") == "dense"):
            raise ModelError(f"{path} has a {key} in its quantization_config; that is not undone")
    known = quantization.QuantizationConfig.model_fields
    with blaming(f"{path} is not valid"):
        config = quantization.QuantizationConfig.model_validate(
            {key: value for key, value in stated.items() if key in known}
        )
        schemes = [_formatted(scheme, config.format) for scheme in config.config_groups.values()]
    for module, group in by_module(checkpoint).items():
        packed = any(mark in group for mark in _MARKS)
        if packed:
            scheme = _scheme_of(module, schemes, checkpoint)
            parts = {name: part for name, part in group.items() if name.startswith("weight")}
            yield StoredWeight(f"{module}.weight", parts, partial(decompress, scheme))
        for name, tensor in group.items():
            if not (packed and name.startswith("weight")) and not name.startswith(_DROPPED):
                yield plain(tensor)


def decompress(scheme: Any, parts: dict[str, Tensor]) -> Tensor:
    """Make a weight from the tensors that a format stores for it.

    Args:
        scheme: the scheme, with its format.
    """
    from compressed_tensors.compressors import BaseCompressor

    compressor = BaseCompressor.get_value_from_registry(scheme.format)
    dense: Tensor = compressor.decompress(parts, scheme)["weight"].detach()
    return dense


def _formatted(scheme: Any, common: str) -> Any:
    """A scheme with a format: its own, the model's, or the inferred one."""
    from compressed_tensors.compressors.format import infer_module_format

    several = common == "mixed-precision"
    found = scheme.format or (infer_module_format(nn.Linear, scheme) if several else common)
    return scheme.model_copy(update={"format": getattr(found, "value", found)})


def _scheme_of(module: str, schemes: list[Any], checkpoint: Checkpoint) -> Any:
    """The scheme whose targets match a module, else the one for a class of modules."""
    from compressed_tensors.utils.match import match_name

    if len(schemes) == 1:
        return schemes[0]
    named = [one for one in schemes if any(match_name(module, t) for t in one.targets)]
    general = [one for one in schemes if "Linear" in one.targets]
    if not named and not general:
        path = checkpoint.folder / CONFIG_FILE
        raise ModelError(f"{path} has no group in its quantization_config for {module}")
    return (named or general)[0]
