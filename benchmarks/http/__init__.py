"""What chat over HTTP costs, with a model that is paced: `python -m benchmarks.http`."""
