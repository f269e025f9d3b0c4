"""The cost of chat over HTTP, with a paced model: `python -m benchmarks.http`."""
