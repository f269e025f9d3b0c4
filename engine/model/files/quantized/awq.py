"""AWQ: 4 bits in AutoAWQ's order, which compressed-tensors converts to its own."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor

from engine.model.files.blame import blaming
from engine.model.files.checkpoint import CONFIG_FILE, Checkpoint
from engine.model.files.quantized.compressed import EXTRA, decompress
from engine.model.files.quantized.grouping import by_module, pick
from engine.model.files.quantized.library import library
from engine.model.files.stored import StoredWeight, plain


def weights(stated: dict[str, Any], checkpoint: Checkpoint) -> Iterator[StoredWeight]:
    """The weights of such a checkpoint.

    Raises:
        ModelError: the library is missing, or does not support the version or the number of bits.
    """
    converters = library("compressed_tensors.entrypoints.convert.converters", EXTRA, "AWQ")
    with blaming(f"{checkpoint.folder / CONFIG_FILE} is not valid"):
        converter = converters.AutoAWQConverter(
            bits=stated.get("bits", stated.get("w_bit", 4)),
            group_size=stated.get("group_size", stated.get("q_group_size", 128)),
            zero_point=stated.get("zero_point", True),
            version=str(stated.get("version", "gemm")).lower(),
            ignore=(),  # The stored tensors show which modules are.
        )
        (scheme,) = converter.update_config(None).config_groups.values()
    names = ("qweight", "scales", *(("qzeros",) if converter.zero_point else ()))
    for module, group in by_module(checkpoint).items():
        packed = "qweight" in group
        if packed:
            parts = pick(module, group, *names)
            yield StoredWeight(f"{module}.weight", parts, partial(_unpack, converter, scheme))
        for name, tensor in group.items():
            if not (packed and name in ("qweight", "scales", "qzeros")):
                yield plain(tensor)


def _unpack(converter: Any, scheme: Any, parts: dict[str, Tensor]) -> Tensor:
    rewritten = converter.process({f"one.{name}": part for name, part in parts.items()})
    return decompress(scheme, {name.removeprefix("one."): t for name, t in rewritten.items()})
