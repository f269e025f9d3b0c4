"""measure_losses: what quantizing a model changes, for each width, over a long text."""

from __future__ import annotations

from dataclasses import replace

from engine.api.client import LoadRequest
from engine.api.config import QUANTIZATIONS
from engine.api.errors import ModelError
from engine.api.status import QuantizationLoss
from engine.model.loader import load_entry
from engine.model.loss import THOROUGH
from engine.model.registry import ModelEntry
from engine.serving.loading import Progress


def measure_losses(
    entry: ModelEntry, request: LoadRequest, progress: Progress
) -> dict[str, QuantizationLoss]:
    """What quantizing a model changes, to what is asked for, or to all that there is.

    It is loaded for each, and let go again.

    Raises:
        ModelError, InvalidConfigError: as `load_entry`; or the chat template does not take the
            fixed text.
    """
    asked = request.quantize or entry.quantize
    widths = [one for one in QUANTIZATIONS if one != "none"] if asked == "none" else [asked]
    found = {}
    for width in widths:
        one = replace(request, quantize=width)
        loaded = load_entry(entry, one, progress, THOROUGH)
        loaded.close()
        if loaded.card.loss is None:
            raise ModelError(f"the chat template of {entry.name} does not take the fixed text")
        found[width] = loaded.card.loss
    return found
