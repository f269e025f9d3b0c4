"""Weights: reads weights into a model, with exact progress in bytes."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from engine.api.errors import ModelError, cause_of
from engine.model.attention.interface import ATTENTION_NAME
from engine.model.files.checkpoint import StoredTensor
from engine.model.files.compact import Compact, CompactWeights
from engine.model.files.meter import Meter
from engine.model.files.stored import StoredWeight
from engine.model.machine.device import is_out_of_memory
from engine.model.program.coded import Origins
from engine.serving.loading import Progress

_TORCH_DTYPES = {
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F64": torch.float64,
}
_CHUNK_BYTES = 16 << 20


def load_weights(
    model_class: Any,
    config: PreTrainedConfig,
    folder: Path,
    weights: Sequence[StoredWeight],
    dtype: torch.dtype,
    device: torch.device,
    progress: Progress,
    compact: CompactWeights | None = None,
    origins: Origins | None = None,
) -> PreTrainedModel:
    """Build a model and fill it, weight by weight, through transformers' own conversion.

    The reading threads call `progress`, one call at a time, with rising byte counts that end at the
    total size.

    Args:
        folder: the folder of the weights, for messages.
        compact: collects the weights that can stay in stored form. Their parameters have numbers
            only while it fills them.
        origins: records the weights that were stored as codes and are floats in the model.

    Raises:
        ModelError: weights are missing, or have another shape than the model's; or they cannot be
            read.
    """
    total = sum(part.num_bytes for weight in weights for part in weight.parts.values())
    meter = Meter("loading weights", total, progress)
    tensors = {
        weight.name: _LazyTensor(weight, meter, dtype, compact, origins) for weight in weights
    }
    try:
        model, info = model_class.from_pretrained(
            None,
            config=config,
            state_dict=tensors,
            dtype=dtype,
            device_map={"": device},
            attn_implementation=ATTENTION_NAME,
            # Mismatches are reported below, by name; transformers would only print them.
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except ModelError:
        raise
    except Exception as error:
        if meter.interrupted or is_out_of_memory(error):
            raise
        raise ModelError(f"the weights in {folder} cannot be loaded: {cause_of(error)}") from error
    for name, stored, wanted in sorted(info["mismatched_keys"]):
        raise ModelError(
            f"{folder} has {name} of shape {tuple(stored)}; its config asks for {tuple(wanted)}"
        )
    missing = sorted(info["missing_keys"])
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelError(f"{folder} lacks the weights {missing[0]}{more}")
    meter.finish()  # The model has no place for some, such as the stored copy of a tied weight.
    loaded: PreTrainedModel = model
    return loaded


def open_weights(
    weights: Iterable[StoredWeight], dtype: torch.dtype, meter: Meter
) -> tuple[CompactWeights, dict[str, Tensor]]:
    """Open weights without a model. Each is read when its numbers are first needed.

    Args:
        weights: matrices, which have `blocks`.
        dtype: the type in which a program computes.

    Returns:
        the weights, and the memory of each by name.
    """
    compact = CompactWeights(dtype)
    memory = {}
    for weight in weights:
        itself = weight.itself
        if itself is not None and _TORCH_DTYPES.get(itself.dtype) == dtype:
            one: Compact = _Unread(itself, meter, dtype)
        else:
            blocks = functools.partial(_read_blocks, weight, dtype, meter)
            one = Compact(blocks, weight.kind, weight.shape, dtype)
        memory[weight.name] = compact.add(weight.name, one)
    return compact, memory


def _read_blocks(weight: StoredWeight, dtype: torch.dtype, meter: Meter) -> Tensor:
    assert weight.blocks is not None
    blocks = weight.blocks({name: _read(part, meter) for name, part in weight.parts.items()})
    return blocks if weight.kind else blocks.to(dtype).view(-1, weight.shape[-1])


class _Unread(Compact):
    """A matrix that is read directly into its window, without a copy."""

    def __init__(self, stored: StoredTensor, meter: Meter, dtype: torch.dtype) -> None:
        super().__init__(functools.partial(_read, stored, meter), "", stored.shape, dtype)
        self._stored = stored
        self._meter = meter

    def _fill(self, out: Tensor) -> None:
        if out.dtype == self.window.dtype:
            _read_into(self._stored, self._meter, out)
        else:
            super()._fill(out)


class _LazyTensor:
    """A weight that is read and unpacked when it is indexed, as transformers expects of a slice."""

    def __init__(
        self,
        weight: StoredWeight,
        meter: Meter,
        dtype: torch.dtype,
        compact: CompactWeights | None,
        origins: Origins | None,
    ) -> None:
        self._weight = weight
        self._meter = meter
        self._dtype = dtype
        self._compact = compact
        self._origins = origins

    def __getitem__(self, index: EllipsisType) -> Tensor:
        weight = self._weight
        parts = {name: _read(part, self._meter) for name, part in weight.parts.items()}
        if self._compact is None or weight.blocks is None:
            unpacked = weight.unpack(parts)
            if self._origins is not None and (weight.kind or weight.is_unpacked):
                # Already in the model's type, because the rows of both are compared.
                unpacked = unpacked.to(self._dtype)
                self._origins.add(unpacked)
            return unpacked
        blocks = weight.blocks(parts)
        if not weight.kind:
            if self._dtype == self._compact.dtype:
                # A model may use a matrix of another type unchanged.
                if blocks.dtype == self._dtype:
                    self._compact.name(weight.name, blocks)
                return blocks
            blocks = blocks.to(self._compact.dtype).view(-1, weight.shape[-1])
        one = Compact(blocks, weight.kind, weight.shape, self._dtype)
        return self._compact.add(weight.name, one)


def _read(stored: StoredTensor, meter: Meter) -> Tensor:
    """Read a tensor into its own memory. GGUF's own types stay bytes.

    It is not memory-mapped. A mapped weight would be read at its first use, long after progress has
    counted it, and later changes of the file would change it.

    Raises:
        ModelError: the file is shorter than it was, or cannot be read.
    """
    data = torch.empty(stored.num_bytes, dtype=torch.uint8)
    _read_into(stored, meter, data)
    dtype = _TORCH_DTYPES.get(stored.dtype)
    return data if dtype is None else data.view(dtype).view(stored.shape)


def _read_into(stored: StoredTensor, meter: Meter, out: Tensor) -> None:
    """Read a tensor into memory of its size, with errors as `_read`."""
    buffer = memoryview(out.view(torch.uint8).flatten().numpy())  # type: ignore[arg-type]
    try:
        with stored.file.open("rb", buffering=0) as stream:
            stream.seek(stored.offset)
            done = 0
            while done < stored.num_bytes:
                count = stream.readinto(buffer[done : done + _CHUNK_BYTES])
                if not count:
                    raise ModelError(f"{stored.file} is truncated: {stored.name} is cut")
                done += count
                meter.add(count)
    except OSError as error:
        raise ModelError(f"{stored.file} cannot be read: {error.strerror}") from error
