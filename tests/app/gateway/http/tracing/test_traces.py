"""Spans of requests over HTTP: kept in memory, and sent to a collector."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.trace import SpanKind, StatusCode

from app.gateway.http import gateway
from app.gateway.http.tracing.opening import ENDPOINTS, open_traces
from app.gateway.http.tracing.traces import Traces
from tests.support.http_serving import HttpServing, http_serving

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
BODY = {"messages": [{"role": "user", "content": "one two three"}]}
# Those that vLLM has beside the conventions.
LATENCIES = {
    f"gen_ai.latency.{name}"
    for name in (
        *("time_in_queue", "time_to_first_token", "time_in_model_prefill"),
        *("time_in_model_decode", "time_in_model_inference", "e2e"),
    )
}
CONVENTIONS = {
    value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")
}


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """The spans that a gateway which is opened now will make."""
    kept = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(gateway, "open_traces", lambda: Traces(provider))
    return kept


def family(serving: HttpServing, spans: InMemorySpanExporter) -> tuple[ReadableSpan, ...]:
    """The one request's span, then its children."""

    def own() -> list[ReadableSpan]:
        return [span for span in spans.get_finished_spans() if span.kind is SpanKind.SERVER]

    serving.until(own)
    (span,) = own()
    children = [other for other in spans.get_finished_spans() if other is not span]
    assert span.context is not None
    for child in children:
        assert child.parent is not None
        assert child.parent.span_id == span.context.span_id
    return (span, *children)


def seconds(span: ReadableSpan) -> float:
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_is_a_span_with_its_phases(spans: InMemorySpanExporter, stream: bool) -> None:
    with http_serving() as serving:
        with serving.running():
            body = {**BODY, "stream": stream, "temperature": 0.5, "max_tokens": 9}
            answer = serving.http.post(
                "/v1/chat/completions", json=body, headers={"traceparent": PARENT}
            )
            assert answer.status_code == 200
        span, *children = family(serving, spans)
    assert span.name == "chat scripted"
    assert span.context is not None
    assert span.parent is not None
    assert f"{span.context.trace_id:032x}" == PARENT.split("-")[1]
    assert f"{span.parent.span_id:016x}" == PARENT.split("-")[2]
    attributes = dict(span.attributes or {})
    assert attributes["gen_ai.operation.name"] == "chat"
    assert attributes["gen_ai.request.model"] == "scripted"
    assert (attributes["gen_ai.request.temperature"], attributes["gen_ai.request.max_tokens"]) == (
        0.5,
        9,
    )
    assert attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert attributes["http.response.status_code"] == 200
    names = {name for name in attributes if name.startswith("gen_ai.")}
    assert names - CONVENTIONS == LATENCIES
    if not stream:
        usage = answer.json()["usage"]
        assert attributes["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
        assert attributes["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
    assert [child.name for child in children] == ["queue", "prefill", "decode"]
    for child, name in zip(
        children, ("time_in_queue", "time_in_model_prefill", "time_in_model_decode"), strict=True
    ):
        assert seconds(child) == pytest.approx(attributes[f"gen_ai.latency.{name}"], abs=1e-6)
    for earlier, later in pairwise(children):
        assert earlier.end_time == later.start_time


def test_each_reply_has_phases_of_its_own(spans: InMemorySpanExporter) -> None:
    with http_serving() as serving:
        with serving.running():
            body = {"prompt": "one two", "n": 2}
            assert serving.http.post("/v1/completions", json=body).status_code == 200
        span, *children = family(serving, spans)
    assert span.name == "text_completion scripted"
    assert (span.attributes or {})["gen_ai.request.choice.count"] == 2
    choices = [(child.attributes or {})["batchdeck.choice"] for child in children]
    assert choices == [0, 0, 0, 1, 1, 1]


def test_a_refusal_is_a_span_without_children(spans: InMemorySpanExporter) -> None:
    with http_serving() as serving:
        assert serving.http.get("/health").status_code == 200
        assert serving.http.post("/v1/chat/completions", content=b"{").status_code == 400
        span, *children = family(serving, spans)
    assert (span.name, children) == ("POST", [])
    assert (span.attributes or {})["http.response.status_code"] == 400
    assert span.status.status_code is StatusCode.UNSET


def test_a_request_that_fails_says_why(spans: InMemorySpanExporter) -> None:
    with http_serving() as serving:
        asking = threading.Thread(
            target=serving.http.post, args=("/v1/chat/completions",), kwargs={"json": BODY}
        )
        asking.start()
        serving.until(lambda: serving.engine.submissions)
        serving.engine.break_request(serving.engine.submissions[0].request_id, "broken")
        asking.join()
        span, *_ = family(serving, spans)
    assert (span.attributes or {})["error.type"] == "engine_error"
    assert (span.attributes or {})["http.response.status_code"] == 500
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "broken")


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ExportTraceServiceRequest]]:
    """The requests that reach the collector named by the environment."""
    found: list[ExportTraceServiceRequest] = []

    class Taking(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            body = self.rfile.read(int(self.headers["content-length"]))
            found.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Taking)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    monkeypatch.setenv(ENDPOINTS[0], f"http://127.0.0.1:{server.server_port}")
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


def test_spans_go_to_the_collector_before_the_gateway_ends(
    collector: list[ExportTraceServiceRequest],
) -> None:
    with http_serving() as serving:
        assert serving.ask().status_code == 200
    serving.gateway.close()  # It may be closed twice.
    (resource,) = [one for request in collector for one in request.resource_spans]
    named = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert named["service.name"] == "batchdeck"
    spans = [span.name for scope in resource.scope_spans for span in scope.spans]
    assert sorted(spans) == ["chat scripted", "decode", "prefill", "queue"]


def test_without_a_collector_there_are_no_traces() -> None:
    assert open_traces({}) is None
    assert open_traces({ENDPOINTS[0]: ""}) is None


def test_without_the_library_a_warning_says_what_brings_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delitem(sys.modules, "app.gateway.http.tracing.traces", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    assert open_traces({ENDPOINTS[0]: "http://127.0.0.1:1"}) is None
    (line,) = [r.getMessage() for r in caplog.records if "batchdeck[otel]" in r.getMessage()]
    assert line.startswith("OTEL_EXPORTER_OTLP_ENDPOINT is set")
