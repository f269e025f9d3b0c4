"""measure_losses: measures the loss of quantizing a model, for each width, over a long text."""

from __future__ import annotations

from dataclasses import replace

from engine.api.client import LoadRequest
from engine.api.config import QUANTIZATIONS
from engine.api.errors import ModelError
from engine.api.status import QuantizationLoss
from engine.model.catalog.registry import ModelEntry
from engine.model.checks.loss import THOROUGH
from engine.model.loading.loader import load_entry
from engine.serving.loading import Progress
from engine.text.pool import encoding


def measure_losses(
    entry: ModelEntry, request: LoadRequest, progress: Progress
) -> dict[str, QuantizationLoss]:
    """Measure the loss of quantizing a model to the requested width, or to every width.

    The model is loaded for each, and freed again.

    Raises:
        ModelError, InvalidConfigError: as `load_entry`; or the chat template does not take the
            fixed text.
    """
    asked = request.quantize or entry.quantize
    widths = [one for one in QUANTIZATIONS if one != "none"] if asked == "none" else [asked]
    found = {}
    for width in widths:
        one = replace(request, quantize=width)
        with encoding() as encoder:
            loaded = load_entry(entry, one, progress, encoder, THOROUGH)
        loaded.close()
        if loaded.card.loss is None:
            raise ModelError(f"the chat template of {entry.name} does not take the fixed text")
        found[width] = loaded.card.loss
    return found
