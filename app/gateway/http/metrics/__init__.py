"""Metrics for Prometheus: vLLM's under its names, and others under ours.

They are counted on the gateway's loop from data that the engine has anyway: a snapshot each second,
and the step records and samples since the snapshot before. `Counts` continue when models are
replaced, and a scrape reads them without a call to the engine.
"""
