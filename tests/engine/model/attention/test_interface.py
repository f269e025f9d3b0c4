"""The function that models call for their attention."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from engine.api.errors import ModelError
from engine.model.attention.base import StepContext
from engine.model.attention.interface import ATTENTION_NAME, paged_attention
from engine.model.attention.torch_backend import TorchAttention
from tests.engine.model.attention.support import SMALL


class TestInterface:
    def call(self, **keywords: object) -> None:
        module = nn.Module()
        module.layer_idx = 0
        x = torch.zeros(1, 1, 1, 8)
        context = StepContext(
            backend=TorchAttention(),
            storage=TorchAttention().storage(SMALL),
            slots=torch.tensor([0]),
            starts=np.array([0]),
            counts=np.array([1]),
            block_tables=np.array([[0]]),
        )
        arguments: dict[str, object] = {"attention_mask": None, "step_context": context}
        paged_attention(module, x, x, x, **(arguments | keywords))  # type: ignore[arg-type]

    def test_no_mask_function_goes_with_our_name(self) -> None:
        assert ATTENTION_NAME not in ALL_MASK_ATTENTION_FUNCTIONS

    def test_what_models_hand_down_besides_is_ignored(self) -> None:
        self.call(dropout=0.0, position_ids=torch.zeros(1, 1), use_cache=False)

    @pytest.mark.parametrize(
        ("keywords", "reason"),
        [
            ({"step_context": None}, "does not hand the step's context to attention"),
            ({"attention_mask": torch.zeros(1, 1, 1, 1)}, "attention mask of its own"),
            ({"is_causal": False}, "not causal"),
            ({"position_bias": torch.zeros(1)}, "position_bias"),
            ({"indices": torch.zeros(1)}, "indices"),
        ],
    )
    def test_what_cannot_be_served_is_refused(
        self, keywords: dict[str, object], reason: str
    ) -> None:
        with pytest.raises(ModelError, match=reason):
            self.call(**keywords)
