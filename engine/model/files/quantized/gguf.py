"""GGUF: a file, or several parts, with weights, configuration and tokenizer by llama.cpp's names.

Its header is read once (`engine.model.files.gguf`). transformers maps the file's tensors to
weights, and the gguf library unpacks a tensor.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedConfig

from engine.api.errors import ModelError
from engine.model.files import kept
from engine.model.files.blame import blaming
from engine.model.files.checkpoint import FLOATS, StoredTensor
from engine.model.files.compact import block_types
from engine.model.files.gguf.config import architecture_of, read_config
from engine.model.files.gguf.header import read_header
from engine.model.files.gguf.tokenizer import TokenizerRecipe, end_token_ids
from engine.model.files.stored import StoredWeight
from engine.native import kernels


class GgufFile:
    """An opened GGUF file, whose weights are not read yet.

    Attributes:
        path: the file, or one of its parts.
        checkpoint: its tensors, by llama.cpp's names and GGUF's types.
        end_token_ids: tokens that end a reply, by its metadata.

    Raises:
        ModelError: it, or a part of it, is missing, truncated or corrupt; or it has tensors of an
            unsupported type.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._gguf: Any = gguf
        self._header = read_header(path)
        self.checkpoint = self._header.checkpoint
        if not self.checkpoint.tensors:
            raise ModelError(f"{path} holds no tensor")
        self._architecture = architecture_of(self._header, path)
        self._check_types()
        self.end_token_ids = end_token_ids(self._header.metadata)

    @property
    def kind(self) -> str:
        """The type of most bytes of the weights, for people."""
        sizes: dict[str, int] = {}
        for tensor in self.checkpoint.tensors:
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.num_bytes
        return f"GGUF {max(sizes, key=sizes.__getitem__)}"

    def read_stated(self) -> dict[str, Any]:
        """The file's configuration, by transformers' names.

        Raises:
            ModelError: transformers does not support such a model from GGUF, or not all of it.
        """
        return read_config(self._header, self.path)

    @property
    def tokenizer_recipe(self) -> TokenizerRecipe:
        """The data of the file's tokenizer."""
        pairs = kept.cache_folder() / "pairs" if kept.KEPT else None
        return TokenizerRecipe(self._header.metadata, self.path, pairs)

    def stored_weights(self, config: PreTrainedConfig) -> tuple[StoredWeight, ...]:
        """The weights by the model's names.

        Raises:
            ModelError: gguf does not know the names of such a model.
        """
        from transformers import modeling_gguf_pytorch_utils

        known: Any = modeling_gguf_pytorch_utils
        with blaming(f"the names in {self.path} cannot be determined"):
            kind = known.TENSOR_PROCESSORS.get(self._architecture, known.TensorProcessor)
            processor = kind(config=config.to_dict())

            def find_names() -> dict[str, str]:
                auto: Any = AutoModelForCausalLM
                with torch.device("meta"):
                    model = auto.from_config(copy.deepcopy(config), trust_remote_code=False)
                return _names(self._gguf, self._architecture, model, processor)

            facts = "names", self._architecture, config.to_json_string()
            names = kept.recall(facts, find_names)
        groups: dict[str, dict[str, StoredTensor]] = {}
        for tensor in self.checkpoint.tensors:
            # Experts have no layer of their own, and so no `weight` in their name.
            name = names.get(tensor.name, names.get(tensor.name.removesuffix(".weight")))
            if name is not None:
                groups.setdefault(name, {})[tensor.name] = tensor
        return tuple(_stored(self._gguf, processor, names, *one) for one in groups.items())

    def _check_types(self) -> None:
        kinds = self._gguf.GGMLQuantizationType
        found = {tensor.dtype: tensor for tensor in self.checkpoint.tensors}
        for name, tensor in found.items():
            if not _is_read(self._gguf, kinds[name]):
                allowed = [kind.name for kind in kinds if _is_read(self._gguf, kind)]
                raise ModelError(
                    f"{tensor.file} stores {tensor.name} as {name}; read are {', '.join(allowed)}"
                )


def _names(gguf: Any, architecture: str, model: Any, processor: Any) -> dict[str, str]:
    """The model's name of each weight, by llama.cpp's name.

    The library's table is searched for a weight's whole name, and then for the name within each
    part of the model: some files were made from a model without its head, whose names are shorter.
    This does the same as transformers' `get_gguf_hf_weights_map`, which makes the table again for
    each module.
    """
    kind = next((one for one, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture), None)
    if kind is None:
        raise ModelError(f"the gguf library does not know the architecture {architecture!r}")
    table = gguf.get_tensor_name_map(kind, model.config.num_hidden_layers)
    found: dict[str, str] = {}
    weights = [processor.preprocess_name(name) for name in model.state_dict()]
    for depth in range(1 + max((name.count(".") for name in weights), default=0)):
        for weight in weights:
            parts = weight.split(".")
            if len(parts) <= depth:
                continue
            whole, own = ".".join(parts[:depth]), ".".join(parts[depth:])
            prefix = f"{whole}." if whole else ""
            base, dot, end = own.rpartition(".")
            name, suffix = (base, dot + end) if end in ("weight", "bias") else (own, "")
            theirs = table.get_name(name)
            if theirs is not None:
                found.setdefault(theirs + suffix, prefix + own)
                continue
            more: dict[str, str] = {}
            processor.perform_fallback_tensor_mapping(more, suffix, prefix, own)
            found = more | found
    return found


def _is_read(gguf: Any, kind: Any) -> bool:
    """Whether the library unpacks a type, tested with one empty block."""
    _, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    try:
        gguf.dequantize(np.zeros((1, num_bytes), dtype=np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def _stored(
    gguf: Any,
    processor: Any,
    names: Mapping[str, str],
    name: str,
    group: Mapping[str, StoredTensor],
) -> StoredWeight:
    weight = StoredWeight(name, group, partial(_unpack, gguf, processor, names, name, group))
    kinds = {(stored.dtype, stored.shape[-1]) for stored in group.values() if len(stored.shape) > 1}
    if len(kinds) != 1 or any(len(stored.shape) < 2 for stored in group.values()):
        return weight
    ((dtype, width),) = kinds
    native = kernels()
    is_coded = native is not None and dtype in block_types(native)
    order = _order_of_rows(processor, names, name, group) if is_coded or dtype in FLOATS else None
    if order is None:
        return weight
    shape = (*order.shape, width)
    blocks = partial(_in_order, tuple(group), order)
    return replace(weight, blocks=blocks, kind=dtype if is_coded else "", shape=shape)


def _order_of_rows(
    processor: Any, names: Mapping[str, str], name: str, group: Mapping[str, StoredTensor]
) -> Tensor | None:
    """Which row of its concatenated tensors each row of a weight is: [..., rows]; None if it does
    not consist of exactly these rows.

    transformers gets the rows' numbers, in two columns, and its result is read.
    """
    parsed: dict[str, dict[str, Any]] = {"tensors": {}}
    before = 0
    try:
        for own, stored in group.items():
            rows = math.prod(stored.shape[:-1])
            numbers = np.arange(2.0 * before, 2.0 * (before + rows)).reshape(*stored.shape[:-1], 2)
            done = processor.process(
                weights=numbers, name=own, tensor_key_mapping=names, parsed_parameters=parsed
            )
            if done.name is not None:
                parsed["tensors"][name] = done.weights
            before += rows
        made = np.asarray(parsed["tensors"][name], dtype=np.float64)
    except Exception:  # it needs more than the rows
        return None
    if made.ndim < 2 or made.shape[-1] != 2 or made.size != 2 * before:
        return None
    order = (made[..., 0] / 2).astype(np.int64)
    is_one = np.array_equal(np.sort(order, axis=None), np.arange(before))
    if not is_one or not np.array_equal(made[..., 1], 2 * order + 1):
        return None
    return torch.from_numpy(order)


def _in_order(group: tuple[str, ...], order: Tensor, parts: dict[str, Tensor]) -> Tensor:
    """Rows in the weight's order: of blocks, uint8 [rows, bytes], or of numbers, [..., rows,
    numbers].
    """
    count, are_blocks = order.numel(), parts[group[0]].ndim == 1
    if len(group) == 1:
        rows = parts[group[0]].view(count, -1)
    else:
        width = sum(parts[own].numel() for own in group) // count
        rows = torch.cat([parts[own].view(-1, width) for own in group])
    flat = order.flatten()
    # rows[flat] copies byte by byte: 100 ms for 30 MB, for which this takes 19.
    made = rows if torch.equal(flat, torch.arange(count)) else rows.index_select(0, flat)
    return made if are_blocks else made.view(*order.shape, -1)


def _unpack(
    gguf: Any,
    processor: Any,
    names: Mapping[str, str],
    name: str,
    group: Mapping[str, StoredTensor],
    parts: dict[str, Tensor],
) -> Tensor:
    """Make a weight from its tensors, of which there are several if layers were merged."""
    parsed: dict[str, dict[str, Tensor]] = {"tensors": {}}
    for own, data in parts.items():
        stored = group[own]
        kind = gguf.GGMLQuantizationType[stored.dtype]
        rows = data.view(torch.uint8).reshape(*stored.shape[:-1], -1)
        values = gguf.dequantize(rows.numpy(), kind)
        done = processor.process(
            weights=values.reshape(stored.shape),
            name=own,
            tensor_key_mapping=names,
            parsed_parameters=parsed,
        )
        if done.name is not None:
            parsed["tensors"][name] = torch.from_numpy(np.ascontiguousarray(done.weights))
    return parsed["tensors"][name]
