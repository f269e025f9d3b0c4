"""Converter: a checkpoint's folder to OpenVINO's form, in the checkpoint's precision."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from optimum.intel import OVModelForCausalLM  # type: ignore[import-not-found]


def convert(checkpoint: Path, target: Path) -> None:
    model = OVModelForCausalLM.from_pretrained(
        checkpoint, export=True, compile=False, load_in_8bit=False
    )
    unfinished = target.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    model.save_pretrained(unfinished)
    shutil.rmtree(target, ignore_errors=True)
    unfinished.rename(target)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
