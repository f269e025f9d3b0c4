"""Random models have the sizes of the published ones."""

from __future__ import annotations

import pytest
import torch

from benchmarks.published import make_model


@pytest.mark.parametrize(
    ("name", "millions"), [("qwen3-0.6b", 596), ("qwen3-1.7b", 1721), ("llama-8b", 8030)]
)
def test_a_model_has_the_parameters_of_the_published_one(name: str, millions: int) -> None:
    model = make_model(name, torch.device("meta"))
    assert round(model.num_parameters() / 1e6) == millions
    assert model.dtype == torch.bfloat16
