"""LoadedModel: what a loader hands to the host, and the shape of a loader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from engine.client import LoadRequest
from engine.config import EngineConfig
from engine.knobs import Knobs
from engine.plan import Runner
from engine.request import SamplingParams
from engine.shape import ModelShape
from engine.snapshot import ModelCard
from engine.text.codec import ChatCodec


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model ready to run, its tensors behind `runner`.

    Attributes:
        key: names model, revision of its weights and dtype; roots the prefix hashes, so that two
            models never share a block, and marks conversation contexts.
        sampling: the model's defaults.
        knobs: where the live policy starts.
        close: frees device memory; nothing of this object may be used afterwards.
    """

    key: str
    card: ModelCard
    config: EngineConfig
    shape: ModelShape
    runner: Runner
    codec: ChatCodec
    sampling: SamplingParams
    knobs: Knobs
    eos_token_ids: frozenset[int]
    close: Callable[[], None]


class Progress(Protocol):
    """Told by a loader: what it does now, and exact bytes of weights done and in all."""

    def __call__(self, detail: str, loaded_bytes: int = 0, total_bytes: int = 0) -> None: ...


class ModelLoader(Protocol):
    def __call__(self, request: LoadRequest, progress: Progress) -> LoadedModel:
        """Load a model.

        Raises:
            ModelError: unknown, broken, unsupported or too large, with the reason and the numbers.
            InvalidConfigError: an option outside its range.
        """
        ...
