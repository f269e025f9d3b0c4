"""Coding: selects the weights that are multiplied as codes, and measures the effect."""

from __future__ import annotations

import logging

import torch
from transformers import PreTrainedModel

from engine.api.config import EngineConfig
from engine.api.status import QuantizationLoss
from engine.batch.shape import ModelShape
from engine.model.checks.loss import LossProbe, Sample, fixed_text
from engine.model.checks.verdicts import Verdict
from engine.model.files.compact import CompactWeights
from engine.model.program.coded import Coded, Origins
from engine.model.program.quantize import NEAREST, Recognized, quantize, recognize
from engine.model.running.forward import Forward
from engine.serving.loading import Progress
from engine.text.job import Encoder

logger = logging.getLogger(__name__)


class Coding:
    """Quantizes weights, or finds those stored as codes, and measures the loss.

    Args:
        name: name of the model.
        method: the format in which the checkpoint is quantized; None if it is not.
        sample: amount of text for measuring the loss.

    Attributes:
        sample: as passed.
        packed_as: format of weights that stay codes, as stored or rounded; empty if there are none.
        rounded_to: format to which weights were rounded that no kernel multiplies as stored; empty
            if there are none.
        loss: the loss through codes; None without codes, or if it could not be measured.
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
        """Find the weights to multiply as codes, if any, after recording the model's output.

        Weights are quantized in place. Stored codes that our kernels multiply are left unchanged,
        and only activations are rounded.

        Args:
            num_bytes: size of the checkpoint, for reports of progress.
            compact: the parameters that stay in their stored form.
            origins: the parameters that were stored as codes and are floats now.
            known: the findings of an earlier check of the model.

        Raises:
            ModelError, InvalidConfigError: see `quantize`.
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
        """The coded weights of a model that was checked before and is not read again.

        Args:
            loss: the loss measured then.
        """
        itemsize: int = getattr(torch, envelope.dtype).itemsize
        coded = Coded(compact, itemsize)
        self._probe, self.loss = None, loss
        self.packed_as = self._method if self._method is not None and coded.has_codes else ""
        return coded

    def compare(self, forward: Forward, envelope: EngineConfig, shape: ModelShape) -> None:
        """Measure the loss through codes, if there are any, and log it."""
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
