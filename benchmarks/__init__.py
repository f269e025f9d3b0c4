"""Comparisons with peers and with the hardware limit, one command each."""

import os

# As the program itself does (`app.serving`), and before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
