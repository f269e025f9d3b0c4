"""GGUF: one file that holds weights, configuration and tokenizer under llama.cpp's names.

transformers reads the configuration and the tokenizer, and knows which tensor of the file is which
weight; the gguf library unpacks a tensor.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedConfig

from engine.api.errors import ModelError, cause_of
from engine.model.blame import blaming
from engine.model.checkpoint import CONFIG_FILE, FLOATS, Checkpoint, StoredTensor
from engine.model.compact import block_types
from engine.model.files import check_file
from engine.model.quantized.library import library
from engine.model.stored import StoredWeight
from engine.native import kernels

_EXTRA = "gguf"


class GgufFile:
    """An opened GGUF file. None of its weights is read yet.

    Attributes:
        path: where it is.
        checkpoint: its tensors, by llama.cpp's names and GGUF's types.

    Raises:
        ModelError: it is missing, truncated or corrupt; it is a part of a model, or of a kind that
            is not read; the gguf library is missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._gguf = library("gguf", _EXTRA, "GGUF")
        try:
            size = check_file(path)
        except FileNotFoundError:
            raise ModelError(f"{path} is missing") from None
        self._metadata = self._read_metadata()
        if self._metadata.get("split.count", 1) != 1:
            raise ModelError(
                f"{path} is one of {self._metadata['split.count']} parts; join them with "
                "llama-gguf-split --merge"
            )
        self._architecture = str(self._metadata["general.architecture"])
        self.checkpoint = self._open(size)

    @property
    def kind(self) -> str:
        """The type that most bytes of the weights have, for people."""
        sizes: dict[str, int] = {}
        for tensor in self.checkpoint.tensors:
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.num_bytes
        return f"GGUF {max(sizes, key=sizes.__getitem__)}"

    def read_stated(self) -> dict[str, Any]:
        """The configuration that the file states, by transformers' names.

        Raises:
            ModelError: transformers does not read such a model from GGUF, or not all of it.
        """
        from transformers import modeling_gguf_pytorch_utils

        known: Any = modeling_gguf_pytorch_utils
        try:
            stated: dict[str, Any] = known.load_gguf_checkpoint(str(self.path))["config"]
        except ValueError as error:
            allowed = sorted(set(known.GGUF_SUPPORTED_ARCHITECTURES) - {"general", "tokenizer"})
            raise ModelError(
                f"{self.path} is of the architecture {self._architecture!r}, and transformers "
                f"{transformers.__version__} cannot read it ({cause_of(error)}); it reads "
                f"{', '.join(allowed)}"
            ) from None
        scaled = self._scaling()
        if scaled is not None:
            raise ModelError(
                f"{self.path} scales its positions ({scaled}), which transformers does not read "
                f"from GGUF; put the model's own {CONFIG_FILE} beside it"
            )
        return stated

    def stored_weights(self, config: PreTrainedConfig) -> tuple[StoredWeight, ...]:
        """The weights as the model has them.

        Raises:
            ModelError: gguf does not know the names of such a model.
        """
        from transformers import modeling_gguf_pytorch_utils

        known: Any = modeling_gguf_pytorch_utils
        with blaming(f"the names in {self.path} cannot be told"):
            auto: Any = AutoModelForCausalLM
            with torch.device("meta"):
                model = auto.from_config(copy.deepcopy(config), trust_remote_code=False)
            kind = known.TENSOR_PROCESSORS.get(self._architecture, known.TensorProcessor)
            processor = kind(config=config.to_dict())
            names: dict[str, str] = known.get_gguf_hf_weights_map(model, processor)
        groups: dict[str, dict[str, StoredTensor]] = {}
        for tensor in self.checkpoint.tensors:
            # Experts have no layer of their own, and so no `weight` in their name.
            name = names.get(tensor.name, names.get(tensor.name.removesuffix(".weight")))
            if name is not None:
                groups.setdefault(name, {})[tensor.name] = tensor
        return tuple(_stored(self._gguf, processor, names, *one) for one in groups.items())

    def _read_metadata(self) -> dict[str, Any]:
        # This reader notices where a count leads beyond the end of the file; the library's does
        # not, and would count on for ever.
        from transformers.integrations.gguf.reader import read_gguf_metadata

        try:
            metadata, _ = read_gguf_metadata(str(self.path))
        except Exception as error:
            raise ModelError(f"{self.path} is no GGUF file, or cut ({cause_of(error)})") from None
        return dict(metadata)

    def _open(self, size: int) -> Checkpoint:
        gguf = self._gguf
        allowed = [kind for kind in gguf.GGMLQuantizationType if _is_read(gguf, kind)]
        try:
            reader = gguf.GGUFReader(str(self.path))
            found = [(one, gguf.GGMLQuantizationType(one.tensor_type)) for one in reader.tensors]
        except Exception as error:
            raise ModelError(
                f"{self.path} cannot be read ({cause_of(error)}); tensors may be of "
                f"{', '.join(kind.name for kind in allowed)}"
            ) from None
        tensors = []
        for one, kind in found:
            if kind not in allowed:
                raise ModelError(
                    f"{self.path} stores {one.name} as {kind.name}; read are "
                    f"{', '.join(each.name for each in allowed)}"
                )
            shape = tuple(int(side) for side in reversed(one.shape.tolist()))
            start, count = int(one.data_offset), int(one.n_bytes)
            if start + count > size:
                raise ModelError(f"{self.path} is truncated: {one.name} is cut")
            tensors.append(StoredTensor(one.name, self.path, kind.name, shape, start, count))
        if not tensors:
            raise ModelError(f"{self.path} holds no tensor")
        with self.path.open("rb") as stream:
            header = stream.read(int(reader.data_offset))
        digest = hashlib.sha256(f"{self.path.name}\n{size}\n".encode() + header)
        return Checkpoint(self.path.parent, tuple(tensors), digest.hexdigest())

    def _scaling(self) -> str | None:
        """What says that positions are scaled, and how; None if they are not."""
        for tensor in self.checkpoint.tensors:
            if tensor.name.startswith("rope_"):
                return tensor.name
        key = f"{self._architecture}.rope.scaling.type"
        return key if self._metadata.get(key, "none") != "none" else None


def _is_read(gguf: Any, kind: Any) -> bool:
    """Whether the library unpacks a type. One empty block tells it."""
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
    if len(group) > 1:
        return weight
    (own, stored), *_ = group.items()
    native = kernels()
    is_coded = native is not None and stored.dtype in block_types(native)
    if len(stored.shape) < 2 or not (is_coded or stored.dtype in FLOATS):
        return weight
    order = _order_of_rows(processor, names, own, stored)
    if order is None:
        return weight
    kind = stored.dtype if is_coded else ""
    return replace(weight, blocks=partial(_in_order, own, order), kind=kind, shape=stored.shape)


def _order_of_rows(
    processor: Any, names: Mapping[str, str], own: str, stored: StoredTensor
) -> Tensor | None:
    """Which of a tensor's rows each row of the weight is, if the weight has just these rows.

    transformers is handed the rows' numbers, in two columns, and what it makes of them is read.
    """
    rows = math.prod(stored.shape[:-1])
    numbers = np.arange(2.0 * rows).reshape(*stored.shape[:-1], 2)
    try:
        done = processor.process(
            weights=numbers,
            name=own,
            tensor_key_mapping=names,
            parsed_parameters={"tensors": {}},
        )
    except Exception:  # it wants more than the rows
        return None
    made = np.asarray(done.weights, dtype=np.float64)
    if done.name is None or made.shape != numbers.shape:
        return None
    order = (made.reshape(rows, 2)[:, 0] / 2).astype(np.int64)
    if not np.array_equal(made.reshape(rows, 2), numbers.reshape(rows, 2)[order % rows]):
        return None
    return torch.from_numpy(order)


def _in_order(own: str, order: Tensor, parts: dict[str, Tensor]) -> Tensor:
    """Rows in the order in which the weight has them: of blocks, uint8 [rows, bytes], or of
    numbers.
    """
    stored = parts[own]
    rows = stored.view(len(order), -1)
    is_same = bool((order == torch.arange(len(order))).all())
    made = rows if is_same else rows[order]
    return made if stored.ndim == 1 else made.view(stored.shape)


def _unpack(
    gguf: Any,
    processor: Any,
    names: Mapping[str, str],
    name: str,
    group: Mapping[str, StoredTensor],
    parts: dict[str, Tensor],
) -> Tensor:
    """A weight of its tensors, which are more than one where layers were merged."""
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
