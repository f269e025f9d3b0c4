"""Traces by OpenTelemetry: the course of each request over HTTP, as spans.

Spans are made where OpenTelemetry's variables name a collector: around the application, and of each
exchange when it is over. A thread of the library sends them.
"""
