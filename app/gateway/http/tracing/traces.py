"""Traces: a span for each request over HTTP, with children for queue, prefill and decode."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.gateway.http.exchange import Exchange
from app.system.versions import version
from engine.api.lifecycle import Timings
from engine.api.stream import Finish

NAME = "batchdeck"
# Timeout for the last spans when the program ends.
FLUSH_SECONDS = 2.0
_PARENT = frozenset((b"traceparent", b"tracestate"))
# The fields of a request, by the names of OpenTelemetry's conventions for generative AI.
_SAMPLING = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "max_tokens": "gen_ai.request.max_tokens",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "seed": "gen_ai.request.seed",
}


class Traces:
    """Makes spans. Used on the gateway's loop, except for `close`.

    A request's span begins and ends with the request, and its parent is the span in `traceparent`.
    OpenTelemetry's variables set the sampling and the destination of spans.

    Args:
        clock: monotonic seconds, those of `Exchange.arrived_at`.
    """

    def __init__(
        self, provider: TracerProvider, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._provider = provider
        self._clock = clock
        self._tracer = provider.get_tracer(NAME, version(NAME))
        self._propagator = TraceContextTextMapPropagator()

    @classmethod
    def to_collector(cls) -> Traces:
        """Traces that are exported by OTLP over HTTP, on their own thread."""
        named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get(
            "OTEL_RESOURCE_ATTRIBUTES", ""
        )
        resource = Resource.create({} if named else {"service.name": NAME})
        # At exit it would wait for a collector that is gone; `close` ends it.
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        return cls(provider)

    def wrap(self, app: ASGIApp) -> ASGIApp:
        """An application each of whose POST requests has a span."""

        async def traced(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or scope["method"] != "POST":
                await app(scope, receive, send)
                return
            headers = {
                name.decode("ascii"): value.decode("latin-1")
                for name, value in scope["headers"]
                if name in _PARENT
            }
            attributes = {"http.request.method": "POST", "url.path": scope["path"]}
            span = self._tracer.start_span(
                "POST", self._propagator.extract(headers), SpanKind.SERVER, attributes
            )

            async def send_traced(message: Message) -> None:
                if message["type"] == "http.response.start":
                    span.set_attribute("http.response.status_code", message["status"])
                    has_status = isinstance(span, ReadableSpan) and not span.status.is_unset
                    if message["status"] >= 500 and not has_status:
                        span.set_status(Status(StatusCode.ERROR))
                await send(message)

            with trace.use_span(span, end_on_exit=True):
                await app(scope, receive, send_traced)

        return traced

    def ended(self, exchange: Exchange, model: str) -> None:
        """Record the outcome of the current request in its span.

        Args:
            model: the model that answered.
        """
        span = trace.get_current_span()
        if not span.is_recording():
            return
        chats = bool(exchange.submissions[0].messages)
        operation = "chat" if chats else "text_completion"
        span.update_name(f"{operation} {model}")
        span.set_attributes(
            {
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": NAME,
                "gen_ai.request.model": model,
                "gen_ai.response.model": model,
                "gen_ai.response.id": exchange.submissions[0].request_id,
                "gen_ai.request.choice.count": len(exchange.submissions),
            }
        )
        span.set_attributes(dict(_sampling(exchange)))
        finishes = [finish for finish in exchange.finishes if finish is not None]
        if finishes:
            span.set_attributes(_usage(finishes))
            span.set_attributes(_latencies(finishes[0].timings))
        if (fault := exchange.fault) is not None:
            span.set_attribute("error.type", fault.type)
            span.set_status(Status(StatusCode.ERROR, fault.message))
        arrival = time.time_ns() - _nanoseconds(self._clock() - exchange.arrived_at)
        for choice, finish in enumerate(exchange.finishes):
            if finish is not None:
                self._phases(span, choice, arrival, finish.timings)

    def _phases(self, span: Span, choice: int, arrival: int, timings: Timings) -> None:
        """A child span for each phase of a reply.

        Args:
            arrival: nanoseconds since the epoch.
        """
        context, start = trace.set_span_in_context(span), arrival
        phases = {"queue": timings.queue, "prefill": timings.prefill, "decode": timings.decode}
        for name, seconds in phases.items():
            if seconds is None:
                break
            attributes = {f"{NAME}.choice": choice}
            child = self._tracer.start_span(name, context, attributes=attributes, start_time=start)
            start += _nanoseconds(seconds)
            child.end(start)

    def close(self) -> None:
        """Flush the last spans; blocks for at most `FLUSH_SECONDS`."""
        flush = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        flush.start()
        flush.join(FLUSH_SECONDS)


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _sampling(exchange: Exchange) -> Iterator[tuple[str, AttributeValue]]:
    stated = exchange.submissions[0].sampling
    for name, attribute in _SAMPLING.items():
        if isinstance(value := stated.get(name), int | float):
            yield attribute, value


def _usage(finishes: Sequence[Finish]) -> dict[str, AttributeValue]:
    """The token counts. The prompt counts once, however many replies it has."""
    usages = [finish.usage for finish in finishes]
    return {
        "gen_ai.response.finish_reasons": [finish.reason.value for finish in finishes],
        "gen_ai.usage.input_tokens": max(usage.prompt_tokens for usage in usages),
        "gen_ai.usage.output_tokens": sum(usage.completion_tokens for usage in usages),
        "gen_ai.usage.cache_read.input_tokens": usages[0].cached_tokens,
        "gen_ai.usage.reasoning.output_tokens": sum(usage.reasoning_tokens for usage in usages),
    }


def _latencies(timings: Timings) -> dict[str, AttributeValue]:
    """Seconds, by vLLM's names."""
    inference = (
        timings.prefill + timings.decode
        if timings.prefill is not None and timings.decode is not None
        else None
    )
    found = {
        "time_in_queue": timings.queue,
        "time_to_first_token": timings.ttft,
        "time_in_model_prefill": timings.prefill,
        "time_in_model_decode": timings.decode,
        "time_in_model_inference": inference,
        "e2e": timings.e2e,
    }
    return {f"gen_ai.latency.{name}": value for name, value in found.items() if value is not None}
