"""Models: those that peers serve, random ones in bfloat16, each written once into the cache
folder."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.model_387m import make_model as make_387m
from benchmarks.peers.environment import Say
from benchmarks.published import make_model

_CPU = torch.device("cpu")

MODELS: dict[str, Callable[[], Any]] = {
    "387m": make_387m,
    **{name: partial(make_model, name, _CPU) for name in ("qwen3-0.6b", "qwen3-1.7b")},
}


def checkpoint(name: str, cache: Path, say: Say) -> Path:
    """The folder of the model as transformers has it, written if it is not there yet. Beside it
    stands what peers make of it."""
    folder = cache / "models" / name / "checkpoint"
    if not folder.exists():
        say(f"writing {name}")
        unfinished = folder.with_suffix(".unfinished")
        MODELS[name]().save_pretrained(unfinished)
        unfinished.rename(folder)
    return folder
