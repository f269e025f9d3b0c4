"""Comparisons with peers and with the hardware limit: each package and module is a command,
`python -m benchmarks.NAME`."""

import os

WAITING, PASSIVE = "OMP_WAIT_POLICY", "PASSIVE"
# The program itself sets this too (`app.process.serving`). It must be set before torch is imported.
os.environ.setdefault(WAITING, PASSIVE)
