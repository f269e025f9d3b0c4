"""What is served of all that transformers has, row by row: `python -m benchmarks.coverage`."""
