"""Metrics for Prometheus: vLLM's under its names, and others under ours.

They are counted on the gateway's loop from data that the engine has anyway: a snapshot each second,
the step records since the last one, and samples from the last number read on. `Counts` continue
when models are replaced, and a scrape reads them without a call to the engine.
"""
