"""Pictures of the interface, of real runs: `python -m benchmarks.screenshots`."""
