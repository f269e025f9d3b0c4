"""Models: those that the chats on screen are held with, with room for replies of some turns."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.screen import random_model
from benchmarks.screen.stand_in import STEP_SECONDS
from engine.builtin import MODEL_DIR

# Replies of a minute at 250 steps a second.
_STAND_IN_POSITIONS = 16_384
# The built-in one takes 2.4 ms for a step of two chats on two cores: its own 2,048 positions were
# over in less than a turn of five seconds.
_BUILTIN_POSITIONS = 8192
# 20 tokens a second for each chat, as fast as one reads.
PACE_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Model:
    """A model to load.

    Attributes:
        context: the most tokens of prompt and reply.
        save: writes it to a folder that exists.
        depth: of the device that stands in for the model (`benchmarks.screen.stand_in`); None if
            the model itself computes.
        step_seconds: what a step of that device takes.
    """

    context: int
    save: Callable[[Path], None]
    depth: int | None = None
    step_seconds: float = STEP_SECONDS


def _save_builtin(folder: Path) -> None:
    """Save the built-in model with more positions. Beyond its own, it does not say words."""
    shutil.copytree(MODEL_DIR, folder, dirs_exist_ok=True)
    file = folder / "config.json"
    about = json.loads(file.read_text(encoding="utf-8"))
    about["max_position_embeddings"] = _BUILTIN_POSITIONS
    file.write_text(json.dumps(about), encoding="utf-8")


MODELS = {
    "builtin": Model(_BUILTIN_POSITIONS, _save_builtin),
    "387m": Model(random_model.MAX_POSITIONS, random_model.save),
    "device": Model(_STAND_IN_POSITIONS, _save_builtin, depth=2),
    "lockstep": Model(_STAND_IN_POSITIONS, _save_builtin, depth=1),
    "paced": Model(_STAND_IN_POSITIONS, _save_builtin, depth=1, step_seconds=PACE_SECONDS),
}
