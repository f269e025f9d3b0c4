"""Converter: a checkpoint's folder to OpenVINO's form, with weights in the width that is named."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from optimum.intel import (  # type: ignore[import-not-found]
    OVModelForCausalLM,
    OVWeightQuantizationConfig,
)

# What is not said is NNCF's default: it quantizes asymmetrically, to 8 bits by rows. To 4 bits it
# quantizes a `ratio` of the layers' matrices, which is all of them, and the rest to 8 bits, as it
# does with embedding and head.
_QUANTIZED = {"int8": {"bits": 8}, "int4": {"bits": 4, "group_size": 64}}


def convert(checkpoint: Path, target: Path, width: str) -> None:
    how = OVWeightQuantizationConfig(**_QUANTIZED[width]) if width in _QUANTIZED else None
    model = OVModelForCausalLM.from_pretrained(
        checkpoint, export=True, compile=False, load_in_8bit=False, quantization_config=how
    )
    unfinished = target.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    model.save_pretrained(unfinished)
    shutil.rmtree(target, ignore_errors=True)
    unfinished.rename(target)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
