"""AutoRound: integers of few bits, packed like GPTQ or AWQ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engine.api.errors import ModelError
from engine.model.files.checkpoint import CONFIG_FILE, Checkpoint
from engine.model.files.quantized import awq, gptq
from engine.model.files.stored import StoredWeight

# auto-round's names of its packings. Only the first one stores zeros less one.
_GPTQ = {
    "auto_round:auto_gptq": "gptq",
    "auto_round:gptqmodel": "gptq_v2",
    "auto_round:exllamav2": "gptq_v2",
    "auto_round": "gptq_v2",
}
_AWQ = "auto_round:auto_awq"
_UNPACKED_BITS = 16  # of modules that are stored unpacked


def weights(stated: dict[str, Any], checkpoint: Checkpoint) -> Iterator[StoredWeight]:
    """The weights of such a checkpoint.

    Raises:
        ModelError: they are packed in another way, are not integers, or differ in their bits; or
            see `gptq.weights` and `awq.weights`.
    """
    path = checkpoint.folder / CONFIG_FILE
    form = stated.get("packing_format", stated.get("backend"))
    kind = stated.get("data_type", "int")
    if form != _AWQ and form not in _GPTQ:
        raise ModelError(
            f"{path} has packing_format {form!r}; of auto-round, {', '.join((*_GPTQ, _AWQ))} are "
            "read"
        )
    if kind != "int":
        raise ModelError(f"{path} has data_type {kind!r}; of auto-round, 'int' is read")
    bits = stated.get("bits")
    for module, own in (stated.get("extra_config") or {}).items():
        said = own.get("bits", bits) if isinstance(own, dict) else own
        if said not in (bits, _UNPACKED_BITS):
            raise ModelError(
                f"{path} states {said!r} bits for {module} and {bits!r} for others; all that is "
                "packed must have the same"
            )
    if form == _AWQ:
        return awq.weights(stated | {"version": "gemm", "zero_point": True}, checkpoint)
    return gptq.weights(stated | {"checkpoint_format": _GPTQ[form]}, checkpoint)
