"""Scrape: the metrics in Prometheus's text format."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Send

from app.gateway.http.endpoint import Endpoint
from app.gateway.http.service import Service


class Scrape(Endpoint):
    """/metrics.

    The format is always the plain one: in OpenMetrics a histogram must not have vLLM's name
    `iteration_tokens_total`.

    Args:
        metrics: the metrics to send.
        is_open: whether they are sent without a key, if keys are set.
    """

    def __init__(self, service: Service, metrics: Collector, *, is_open: bool) -> None:
        super().__init__(service)
        self._metrics = metrics
        self._is_open = is_open

    async def answer(self, request: Request, send: Send) -> Response:
        if not self._is_open:
            self.service.asker(request)
        headers = {"content-type": CONTENT_TYPE_PLAIN_0_0_4}
        return Response(generate_latest(self._metrics), headers=headers)
