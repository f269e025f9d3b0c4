"""Metrics for Prometheus: vLLM's under its names, and under ours what it has not."""
