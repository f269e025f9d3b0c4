"""How soon the interface answers, and what it takes: `python -m benchmarks.interface`."""
