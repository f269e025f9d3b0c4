"""Comparisons with peers and with the hardware limit, one command each."""

import os

WAITING, PASSIVE = "OMP_WAIT_POLICY", "PASSIVE"
# As the program itself does (`app.process.serving`), and before torch is imported.
os.environ.setdefault(WAITING, PASSIVE)
