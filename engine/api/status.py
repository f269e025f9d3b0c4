"""Status: the phase of the engine as a whole, and its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from engine.api.preset import Preset
from engine.api.sampling import CHAT_SAMPLING, CHOOSING, SamplingParams


class EnginePhase(StrEnum):
    """Phase of the engine as a whole."""

    EMPTY = "empty"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """Status of the engine as a whole, available at any moment, even before a model is loaded.

    Attributes:
        model: name of the loaded model, or of the one that loads.
        detail: one sentence on the current work, or on why it failed.
        loaded_bytes, total_bytes: exact progress of the weights.
        has_crashed: whether an engine thread has ended or hangs. Then nothing is served and no
            model can be loaded until the program is restarted.
    """

    phase: EnginePhase
    model: str = ""
    detail: str = ""
    loaded_bytes: int = 0
    total_bytes: int = 0
    has_crashed: bool = False


@dataclass(frozen=True, slots=True)
class QuantizationLoss:
    """How quantized weights change a model's next tokens over a fixed text; or, where weights
    quantized on disk stay packed, how activations of 15 bits do; or both.

    Attributes:
        tokens: how many were compared.
        equal_best: share of them whose likeliest next token is that of the original model.
        divergence: Kullback-Leibler divergence from the original model's next token, in nats a
            token.
    """

    tokens: int
    equal_best: float
    divergence: float


@dataclass(frozen=True, slots=True)
class OffPath:
    """Operations of one kind that torch computes, between two segments of our kernels.

    Attributes:
        name: name of the operation, such as linear or attend, or of a module's class.
        columns: columns of its result.
        count: number of these operations in the model.
        reason: why our kernels do not compute the first of them, as a clause.
        share: share of the time of a decode step, from 0 to 1, in the smallest step run during
            loading; None if not measured.
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
        gpu_uuid: UUID of the GPU or MIG instance as NVIDIA's driver writes it, because CUDA numbers
            devices differently. Empty if it is not a GPU.
        sampling: defaults of requests that are not chats (see `chat_sampling`).
        sampling_sources: for each recommended parameter, by name, the file that recommends it.
        has_chat_template: whether the tokenizer has a chat template. A model without one completes
            text: a chat is a line `role: content` for each message, and a reply ends where the
            model begins a line with a role's name.
        switches_thinking: whether the chat template has `enable_thinking`.
        presets: presets of models.toml.
        quantize: format of weights quantized at load, one of `engine.api.config.QUANTIZATIONS`.
        packed_as: the format in which weights were quantized on disk, if they stay packed, so that
            activations are rounded to 15 bits; else empty.
        rounded_to: format of packed weights that no kernel can multiply as stored, one of
            `engine.api.config.QUANTIZATIONS`; empty if there are none.
        loss: the loss through this; None if nothing is packed, or if it could not be measured.
        off_path: operations outside our kernels, if these compute the others.
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
        """Number of operations outside our kernels, if these compute the others."""
        return sum(one.count for one in self.off_path)

    @property
    def chat_sampling(self) -> SamplingParams:
        """The defaults of a chat: `sampling`, plus `CHAT_SAMPLING` if the model recommends none of
        the parameters that choose tokens.
        """
        if CHOOSING.isdisjoint(self.sampling_sources):
            return self.sampling.override(CHAT_SAMPLING)
        return self.sampling
