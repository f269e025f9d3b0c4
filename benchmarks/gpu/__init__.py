"""batchdeck on a GPU, its limits and its peer: `python -m benchmarks.gpu [--short]`."""
