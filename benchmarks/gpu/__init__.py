"""batchdeck on a GPU beside what the GPU can do, and its peer: `python -m benchmarks.gpu`."""
