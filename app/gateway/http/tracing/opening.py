"""open_traces: traces, if the environment enables them and the libraries are installed."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.gateway.http.tracing.traces import Traces

log = logging.getLogger(__name__)

# OpenTelemetry's variables. The exporter reads them, and all others that it knows, by itself.
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def open_traces(env: Mapping[str, str] = os.environ) -> Traces | None:
    """Traces for the collector that the environment names; None if it names none."""
    named = [name for name in ENDPOINTS if env.get(name)]
    if not named:
        return None
    try:
        from app.gateway.http.tracing.traces import Traces
    except ModuleNotFoundError as error:
        log.warning(
            "%s is set, but %s is not installed: there are no traces; "
            "pip install 'batchdeck[otel]' brings it",
            *(named[0], error.name),
        )
        return None
    return Traces.to_collector()
