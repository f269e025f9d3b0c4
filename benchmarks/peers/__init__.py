"""batchdeck beside its peers on a processor: `python -m benchmarks.peers`.

The modules of this package that peers import (`serve`, `workload`, and their own in `engines`) run
under interpreters that have none of batchdeck's dependencies. They may use only the standard
library and the peer's packages.
"""
