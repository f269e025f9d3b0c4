"""Coding: which of a model's weights are multiplied as codes, and what that changes."""

from __future__ import annotations

import logging

import torch
from transformers import PreTrainedModel

from engine.api.config import EngineConfig
from engine.api.status import QuantizationLoss
from engine.batch.shape import ModelShape
from engine.model.compact import CompactWeights
from engine.model.forward import Forward
from engine.model.loss import LossProbe, Sample, fixed_text
from engine.model.program.coded import Coded
from engine.model.program.origins import Origins
from engine.model.program.quantize import NEAREST, Recognized, quantize, recognize
from engine.model.verdicts import Verdict
from engine.serving.loading import Progress
from engine.text.codec import Encoder

logger = logging.getLogger(__name__)


class Coding:
    """Has weights quantized, or finds those that were stored as codes, and compares.

    Args:
        name: of the model.
        method: the format in which the checkpoint is quantized; None if it is not.
        sample: over how much text it is measured what codes change.

    Attributes:
        sample: as it was given.
        packed_as: the format of weights that stay codes, as they were stored or rounded; empty if
            none do.
        rounded_to: what those of them became that no kernel multiplies as they were stored; empty
            if there are none.
        loss: what codes change; None if there are none, or it could not be measured.
    """

    def __init__(self, name: str, method: str | None, sample: Sample) -> None:
        self._name = name
        self._method = method
        self.sample = sample
        self._probe: LossProbe | None = None
        self.packed_as = self.rounded_to = ""
        self.loss: QuantizationLoss | None = None

    def find(
        self,
        model: PreTrainedModel,
        envelope: EngineConfig,
        shape: ModelShape,
        backend: str,
        encoder: Encoder,
        progress: Progress,
        num_bytes: int,
        compact: CompactWeights,
        origins: Origins,
        known: Verdict | None = None,
    ) -> Coded | None:
        """Which weights are multiplied as codes, if any; what the model says before is kept.

        Weights are quantized in place. Those that were stored as codes which our kernels multiply
        stay what they are, and only activations are rounded.

        Args:
            num_bytes: of the checkpoint, for the report of progress.
            compact: the parameters that stay as they are stored.
            origins: the others that were stored as codes, and are floats now.
            known: what was found when the model was checked before.

        Raises:
            ModelError, InvalidConfigError: as `quantize`.
        """
        self._probe, self.packed_as, self.rounded_to, self.loss = None, "", "", None
        if envelope.quantize != "none":
            progress(f"quantizing to {envelope.quantize}", num_bytes, num_bytes)
            self._listen(model, encoder)
            return quantize(model, envelope, shape)
        if backend != "cpu":
            return None
        itemsize: int = getattr(torch, envelope.dtype).itemsize
        coded = Coded(compact, itemsize)
        found = recognize(model, envelope, shape, coded, origins) if origins else Recognized(coded)
        has_codes = found.coded is not None and found.coded.has_codes
        if self._method is None or not (has_codes or found.rest):
            return found.coded
        self.packed_as = self._method
        if found.rest:
            self.rounded_to = f"int{NEAREST[0]}"
        if known is not None:
            self.loss = known.loss
        else:
            progress("measuring what rounding changes", num_bytes, num_bytes)
            self._listen(model, encoder)
        return found.round_rest()

    def find_known(
        self, compact: CompactWeights, envelope: EngineConfig, loss: QuantizationLoss | None
    ) -> Coded:
        """The weights of a model that was checked before, and is not read again.

        Args:
            loss: what was measured then.
        """
        itemsize: int = getattr(torch, envelope.dtype).itemsize
        coded = Coded(compact, itemsize)
        self._probe, self.loss = None, loss
        self.packed_as = self._method if self._method is not None and coded.has_codes else ""
        return coded

    def compare(self, forward: Forward, envelope: EngineConfig, shape: ModelShape) -> None:
        """Measure what codes change, if there are any, and tell the log."""
        if self._probe is None:
            return
        self.loss = self._probe.compare(forward, envelope, shape)
        self._probe = None
        logger.info(
            "%s in %s: after %.1f %% of %d tokens the likeliest next token is the same, "
            "divergence %.2g nats",
            self._name,
            self.packed_as or envelope.quantize,
            100 * self.loss.equal_best,
            self.loss.tokens,
            self.loss.divergence,
        )

    def _listen(self, model: PreTrainedModel, encoder: Encoder) -> None:
        token_ids = fixed_text(encoder, self.sample)
        self._probe = None if token_ids is None else LossProbe(model, token_ids)
