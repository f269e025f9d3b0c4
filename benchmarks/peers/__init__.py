"""batchdeck beside its peers on a processor: `python -m benchmarks.peers`.

What peers import of this package (`load`, `serve`, their module in `engines`) runs under
interpreters that have none of batchdeck's dependencies: only the standard library, and the peer's.
"""
