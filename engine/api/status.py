"""Status: where the engine as a whole stands, and the model in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from engine.api.preset import Preset
from engine.api.sampling import CHAT_SAMPLING, CHOOSING, SamplingParams


class EnginePhase(StrEnum):
    """Where the engine as a whole stands."""

    EMPTY = "empty"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """The engine as a whole. It is available at any moment, also before a model is loaded.

    Attributes:
        model: name of the model that is loaded or being loaded.
        detail: one sentence on what is being done, or on why it failed.
        loaded_bytes, total_bytes: exact progress of loading weights.
        has_crashed: whether a thread of the engine has ended or hangs. Then nothing is served any
            more, and no other model can be loaded, until the program is started again.
    """

    phase: EnginePhase
    model: str = ""
    detail: str = ""
    loaded_bytes: int = 0
    total_bytes: int = 0
    has_crashed: bool = False


@dataclass(frozen=True, slots=True)
class QuantizationLoss:
    """How quantized weights change a model's next tokens, over a fixed text; or, where weights were
    quantized on disk and stay as they are, how activations of 15 bits do; or both.

    Attributes:
        tokens: how many were compared.
        equal_best: share of them after which the likeliest next token is that of the model before.
        divergence: of that model's next token, Kullback and Leibler's, in nats a token.
    """

    tokens: int
    equal_best: float
    divergence: float


@dataclass(frozen=True, slots=True)
class OffPath:
    """Operations of one kind that our kernels do not compute: torch does, between two stretches of
    them.

    Attributes:
        name: of the operation, as linear or attend, or of the class of a module.
        columns: of its result.
        count: how many operations of the model these are.
        reason: why our kernel does not compute the first of them, as a clause.
        share: of the time of a decode step, from 0 to 1, by the smallest step that was taken while
            the model was loaded; None if it was not measured.
    """

    name: str
    columns: int
    count: int
    reason: str
    share: float | None = None


@dataclass(frozen=True, slots=True)
class ModelCard:
    """The loaded model, for people.

    Attributes:
        device: as torch names it: cpu, cuda:1.
        gpu_uuid: of the GPU or MIG instance that this is, as NVIDIA's driver writes it: CUDA's
            numbers are not those of the driver. Empty if it is none.
        sampling: what holds where a request states nothing, and is not of a chat
            (`chat_sampling`).
        sampling_sources: for each of its parameters that is recommended, by name, the file that
            does so.
        has_chat_template: whether the tokenizer has a chat template. A model without one completes
            text: a chat is a line `role: content` for each message, and a reply ends where the
            model begins a line with the name of a role.
        switches_thinking: whether the chat template knows `enable_thinking`.
        presets: of models.toml.
        quantize: what weights were quantized to at load, of `engine.api.config.QUANTIZATIONS`.
        packed_as: the format in which weights were quantized on disk, if they stay packed, so that
            activations are rounded to 15 bits; else empty.
        rounded_to: what weights of that format became that no kernel multiplies as they were
            stored, of `engine.api.config.QUANTIZATIONS`; empty if there are none.
        loss: what this changed; None if nothing is packed, or if it could not be measured.
        off_path: operations that our kernels do not compute, while they compute the others.
        off_kernels: why the model runs module by module, or by torch alone, as a clause; empty if
            our kernels compute its operations.
    """

    name: str
    architecture: str
    num_params: int
    dtype: str
    device: str
    attention: str
    max_model_len: int
    weight_bytes: int
    kv_bytes_per_token: int
    gpu_uuid: str = ""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    sampling_sources: Mapping[str, str] = field(default_factory=dict, hash=False)
    has_chat_template: bool = True
    switches_thinking: bool = False
    presets: tuple[Preset, ...] = ()
    quantize: str = "none"
    packed_as: str = ""
    rounded_to: str = ""
    loss: QuantizationLoss | None = None
    off_path: tuple[OffPath, ...] = ()
    off_kernels: str = ""

    @property
    def num_off_path(self) -> int:
        """How many operations our kernels do not compute, while they compute the others."""
        return sum(one.count for one in self.off_path)

    @property
    def chat_sampling(self) -> SamplingParams:
        """The sampling of a chat that states nothing: as `sampling`, with `CHAT_SAMPLING` where
        nothing is recommended of how a token is chosen.
        """
        if CHOOSING.isdisjoint(self.sampling_sources):
            return self.sampling.override(CHAT_SAMPLING)
        return self.sampling
