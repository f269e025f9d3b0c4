"""The reference attention of torch: its states, and the segments of a step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from engine.model.attention import torch_backend
from engine.model.attention.base import StepContext
from engine.model.attention.params import AttentionParams
from engine.model.attention.torch_backend import TorchAttention
from tests.engine.model.attention.support import SMALL


def test_cudnn_does_not_build_a_plan_for_each_shape() -> None:
    torch.backends.cuda.enable_cudnn_sdp(True)
    TorchAttention()
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_layouts_and_bands_are_built_once_for_each_window() -> None:
    attention = TorchAttention()
    storage = attention.storage(replace(SMALL, num_layers=3))
    context = StepContext(
        backend=attention,
        storage=storage,
        slots=torch.arange(20),
        starts=np.array([0]),
        counts=np.array([20]),
        block_tables=np.array([[0, 1]]),
    )
    kept = []
    for layer, window in enumerate((None, 7, None)):
        context.backend.attend(torch.randn(20, 1, 8), layer, context, AttentionParams(1.0, window))
        kept.append(context.layouts[window])
    assert kept[0] is kept[2]
    assert set(context.layouts) == {None, 7}


def test_runs_bound_padding_and_size() -> None:
    lengths = np.sort(np.random.default_rng(0).integers(1, 200, size=300))
    runs = torch_backend._runs(lengths, 16, 1 << 16)
    assert sorted(row for first, last in runs for row in range(first, last)) == list(range(300))
    for first, last in runs:
        gathered = lengths[last - 1] * (last - first) * 16
        padding = gathered - lengths[first:last].sum() * 16
        assert gathered <= 1 << 16
        assert padding <= max(torch_backend._FREE_PADDING_TOKENS, 0.1 * gathered)
    assert len(runs) < 25
    assert torch_backend._runs(lengths[:0], 16, 1 << 16) == []
