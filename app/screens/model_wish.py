"""ModelWish: a model that a user wants to be loaded, and how."""

from __future__ import annotations

from dataclasses import dataclass

from engine.api.config import QUANTIZATIONS


@dataclass(frozen=True, slots=True)
class ModelWish:
    """Which model is wanted, and how wide its weights are to be.

    Attributes:
        model: a name, a folder, a file or a hub id; empty is the one that is there.
        quantize: of `QUANTIZATIONS`; None is as the program was started, or else as the registry
            has it.
    """

    model: str
    quantize: str | None = None

    @staticmethod
    def read(text: str) -> ModelWish:
        """What is meant by a line such as `qwen3-0.6b int8`. Either part may be missing."""
        *before, last = text.rsplit(maxsplit=1) or [""]
        if last in QUANTIZATIONS:
            return ModelWish("".join(before).strip(), last)
        return ModelWish(text.strip())
