"""The function that models call for their attention."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from engine.api.errors import ModelError
from engine.cache.storage import KVStorage
from engine.model.attention.base import StepContext
from engine.model.attention.interface import (
    ATTENTION_NAME,
    attends_next,
    computing_step,
    paged_attention,
)
from engine.model.attention.torch_backend import TorchAttention
from tests.engine.model.attention.support import SMALL


class TestInterface:
    def call(
        self,
        layer: int | None = 0,
        places: dict[int, tuple[int, int]] | None = None,
        cached: int | None = None,
        borrowing: tuple[int, ...] = (),
        **keywords: object,
    ) -> KVStorage:
        """Attend to a token of ones; returns where it was stored.

        Args:
            layer: number of the module.
            cached: layer that was handed to the cache before.
            borrowing: layers whose keys and values another one has stored.
        """
        module = nn.Module()
        if layer is not None:
            module.layer_idx = layer
        x = torch.ones(1, 1, 1, 8)
        storage = TorchAttention().storage(replace(SMALL, num_layers=2))
        storage.clear_blocks([0])
        context = StepContext(
            backend=TorchAttention(),
            storage=storage,
            slots=torch.tensor([0]),
            starts=np.array([0]),
            counts=np.array([1]),
            block_tables=np.array([[0]]),
        )
        arguments: dict[str, object] = {"attention_mask": None}
        with computing_step(context, places=places, borrowing=borrowing):
            if cached is not None:
                attends_next(cached, x, x)
            paged_attention(module, x, x, x, **(arguments | keywords))  # type: ignore[arg-type]
        return storage

    def test_keys_and_values_go_to_the_place_of_their_layer(self) -> None:
        """Where only some layers attend, their places are not their numbers."""
        storage = self.call(layer=7, places={3: (0, 0), 7: (0, 1)})
        assert [bool(layer[0].any()) for layer in storage.keys] == [False, True]

    def test_what_another_layer_has_stored_is_not_stored_again(self) -> None:
        places = {3: (0, 0), 7: (0, 0)}
        assert self.call(layer=3, places=places, borrowing=(7,)).keys[0][0].any()
        assert not self.call(layer=7, places=places, borrowing=(7,)).keys[0][0].any()

    def test_the_layer_that_was_handed_to_the_cache_is_the_one(self) -> None:
        """A module that several layers share has no number, or that of another."""
        for layer in (None, 0):
            storage = self.call(layer=layer, cached=1)
            assert [bool(keys[0].any()) for keys in storage.keys] == [False, True]

    def test_a_layer_that_never_attended_is_forgotten_with_its_step(self) -> None:
        x = torch.zeros(1, 1, 1, 8)
        attends_next(1, x, x)
        assert self.call(layer=0).keys[0][0].any()

    def test_outside_of_a_step_there_is_no_attention(self) -> None:
        x = torch.zeros(1, 1, 1, 8)
        with pytest.raises(LookupError):
            paged_attention(nn.Module(), x, x, x, None)

    def test_no_mask_function_goes_with_our_name(self) -> None:
        assert ATTENTION_NAME not in ALL_MASK_ATTENTION_FUNCTIONS

    def test_what_models_hand_down_besides_is_ignored(self) -> None:
        self.call(dropout=0.0, position_ids=torch.zeros(1, 1), use_cache=False)

    @pytest.mark.parametrize(
        ("keywords", "reason"),
        [
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
