"""Structures of replies, by the engine beside its peer: `python -m benchmarks.structure`."""
