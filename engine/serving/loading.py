"""LoadedModel: the result of a loader, and the protocol of loaders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from engine.api.client import LoadRequest
from engine.api.config import EngineConfig
from engine.api.knobs import Knobs
from engine.api.status import ModelCard
from engine.batch.plan import Runner
from engine.batch.shape import ModelShape
from engine.text.codec import ChatCodec


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model ready to run, with its tensors behind `runner`.

    Attributes:
        key: identifies the model, the revision of its weights and the dtype. Prefix hashes start
            from it, so that two models never share a block, and conversation contexts have it.
        knobs: start values of the live policy.
        knob_notes: reasons for some start values, by name.
        swap_rate: bytes a second at which `runner` swaps blocks, out and back, as measured; 0 if
            not measured.
        close: frees device memory; this object must not be used afterwards.
    """

    key: str
    card: ModelCard
    config: EngineConfig
    shape: ModelShape
    runner: Runner
    codec: ChatCodec
    knobs: Knobs
    eos_token_ids: frozenset[int]
    close: Callable[[], None]
    swap_rate: float = 0.0
    knob_notes: Mapping[str, str] = field(default_factory=dict)


class Progress(Protocol):
    """Reports a loader's current work, and exact bytes of weights, loaded and total."""

    def __call__(self, detail: str, loaded_bytes: int = 0, total_bytes: int = 0) -> None: ...


class ModelLoader(Protocol):
    def __call__(self, request: LoadRequest, progress: Progress) -> LoadedModel:
        """Load a model.

        Raises:
            ModelError: the model is unknown, broken, unsupported or too large; the message has the
                reason and the numbers.
            InvalidConfigError: an option is outside its range.
        """
        ...
