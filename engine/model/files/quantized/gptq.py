"""GPTQ: integers of few bits, packed along the inputs like compressed-tensors."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from engine.api.errors import ModelError
from engine.model.files.blame import blaming
from engine.model.files.checkpoint import CONFIG_FILE, Checkpoint
from engine.model.files.quantized.compressed import EXTRA
from engine.model.files.quantized.grouping import by_module, pick
from engine.model.files.quantized.library import library
from engine.model.files.stored import StoredWeight, plain

_NAMES = ("qweight", "qzeros", "scales", "g_idx")
_BITS = (2, 4, 8)
# The first format stores zeros less one, and the second stores them unchanged.
_ZERO_LESS = {"gptq": 1, "gptq_v2": 0}


def weights(stated: dict[str, Any], checkpoint: Checkpoint) -> Iterator[StoredWeight]:
    """The weights of such a checkpoint.

    Raises:
        ModelError: the library is missing; another number of bits, or another format, is stated.
    """
    quantization = library("compressed_tensors.quantization", EXTRA, "GPTQ")
    path = checkpoint.folder / CONFIG_FILE
    bits, size = stated.get("bits"), stated.get("group_size", 128)
    kind = stated.get("checkpoint_format") or "gptq"
    if bits not in _BITS:
        raise ModelError(f"{path} states {bits!r} bits; of GPTQ, {_BITS} are read")
    if kind not in _ZERO_LESS:
        raise ModelError(f"{path} has checkpoint_format {kind!r}; {', '.join(_ZERO_LESS)} are read")
    with blaming(f"{path} is not valid"):
        args = quantization.QuantizationArgs(
            num_bits=bits,
            type="int",
            symmetric=False,
            strategy="channel" if size == -1 else "group",
            group_size=None if size == -1 else size,
        )
    for module, group in by_module(checkpoint).items():
        packed = "qweight" in group
        if packed:
            parts = pick(module, group, "qweight", "qzeros", "scales")
            parts |= {name: group[name] for name in ("g_idx",) if name in group}
            unpack = partial(_unpack, args, _ZERO_LESS[kind])
            yield StoredWeight(f"{module}.weight", parts, unpack)
        for name, tensor in group.items():
            # AutoGPTQ stores a bias of zeros if the layer has none; the model ignores it.
            if not (packed and name in _NAMES):
                yield plain(tensor)


def _unpack(args: Any, zero_less: int, parts: dict[str, Tensor]) -> Tensor:
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    bits = args.num_bits
    qweight, scales = parts["qweight"], parts["scales"]
    inputs, outputs = qweight.shape[0] * 32 // bits, qweight.shape[1]
    values = unpack_from_int32(qweight.T.contiguous(), bits, torch.Size((outputs, inputs)))
    groups = torch.Size((outputs, scales.shape[0]))
    zeros = unpack_from_int32(parts["qzeros"].T.contiguous(), bits, groups, packed_dim=0)
    # As unsigned numbers, zeros wrap when one is added.
    half = 1 << (bits - 1)
    zeros = ((zeros.int() + half + zero_less) % (1 << bits) - half).to(values.dtype)
    order = None
    if "g_idx" in parts:
        # With activation order, a group's inputs are not adjacent.
        order = torch.argsort(parts["g_idx"].long(), stable=True)
        values = values[:, order]
    dense: Tensor = dequantize(values, scales.T.contiguous(), zeros, args)
    if order is None:
        return dense
    restored = torch.empty_like(dense)
    restored[:, order] = dense
    return restored
