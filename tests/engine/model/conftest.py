"""What holds for the tests that compute."""

from __future__ import annotations

import torch

# Tiny operators gain nothing from a second thread and lose much where the cores are shared.
torch.set_num_threads(1)
