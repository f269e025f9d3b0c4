"""batchdeck beside llama.cpp on model files as people have them: `python -m benchmarks.real`."""
