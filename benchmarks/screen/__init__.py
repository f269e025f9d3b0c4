"""The interface on screen beside an engine without one: `python -m benchmarks.screen`."""
