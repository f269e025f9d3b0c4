"""Folders: what transformers makes of a model file, in float32 to compare with, and in bfloat16."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine.model.files.quantized.methods import forget

_TYPES = {"float32": torch.float32, "checkpoint": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Folders:
    """Folders of safetensors with the file's dequantized weights.

    Attributes:
        float32: the weights as they are.
        checkpoint: they are rounded to bfloat16. Peers' own forms are written beside it.
    """

    float32: Path
    checkpoint: Path

    @classmethod
    def of(cls, file: Path, cache: Path, say: Callable[[str], None]) -> Folders:
        """Those of a GGUF file, by its content. They are written if they are not there yet."""
        with file.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        root = cache / "real" / f"{file.stem}-{digest[:12]}"
        if not root.exists():
            say(f"{file.name}: dequantizing")
            unfinished = root.with_suffix(".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            _write(file, unfinished)
            unfinished.rename(root)
        return cls(*(root / name for name in _TYPES))

    @property
    def mib(self) -> float:
        """Size of the weights in bfloat16, in MiB."""
        return sum(path.stat().st_size for path in self._weights) / 2**20

    def read_seconds(self, rounds: int) -> float:
        """Seconds of a plain read of these weights into memory, warm: a median."""
        found = []
        for _ in range(rounds + 1):
            start = perf_counter()
            for path in self._weights:
                path.read_bytes()
            found.append(perf_counter() - start)
        return median(found[1:])

    @property
    def _weights(self) -> list[Path]:
        return [*self.checkpoint.glob("*.safetensors")]


def _write(file: Path, root: Path) -> None:
    where = {"gguf_file": file.name}
    factory: Any = AutoModelForCausalLM
    read = factory.from_pretrained(file.parent, dtype=torch.float32, **where)
    # What it read counts as quantized, which is not written.
    forget(read.config)
    model = factory.from_config(read.config, dtype=torch.float32)
    model.load_state_dict(read.state_dict())
    tokenizer: Any = AutoTokenizer.from_pretrained(file.parent, **where)
    for name, dtype in _TYPES.items():
        model.to(dtype).save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
