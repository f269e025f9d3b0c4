"""Loading a model from a folder: what the tests of the loader do all the time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel

from engine.api.client import LoadRequest
from engine.api.errors import EngineError, InvalidConfigError, ModelError
from engine.model.loading.loader import load_model
from engine.serving.loading import LoadedModel

SMALL = {"device": "cpu", "num_blocks": 40, "max_num_seqs": 4, "max_num_batched_tokens": 64}


class Recorded:
    """A `Progress` that remembers."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int]] = []

    def __call__(self, detail: str, loaded_bytes: int = 0, total_bytes: int = 0) -> None:
        self.calls.append((detail, loaded_bytes, total_bytes))


def load(folder: Path, progress: Recorded | None = None, **options: Any) -> LoadedModel:
    request = LoadRequest(str(folder), **(SMALL | {"dtype": "float32"} | options))
    return load_model(request, progress or Recorded())


def refusal(folder: Path, **options: Any) -> EngineError:
    with pytest.raises((ModelError, InvalidConfigError)) as caught:
        load(folder, **options)
    assert "\n" not in caught.value.message
    return caught.value


def weights_of(loaded: LoadedModel) -> PreTrainedModel:
    model: PreTrainedModel = loaded.runner.forward._model  # type: ignore[attr-defined]
    return model
