"""Traces by OpenTelemetry: what became of each request over HTTP, as spans."""
