"""The models of transformers that are served, row by row: `python -m benchmarks.coverage`."""
