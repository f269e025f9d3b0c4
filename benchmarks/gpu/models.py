"""The bytes that decode steps of random models have to read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from benchmarks.published import make_model
from engine.batch.shape import ModelShape
from engine.model.tracing.trace import trace


@dataclass(frozen=True, slots=True)
class Shaped:
    """The shape of a model, and what a decode step has to read of its weights.

    Attributes:
        experts, chosen: experts of a layer, and how many of them a token has; 0 if there are none.
        expert_bytes: of all experts of all layers.
        dense_bytes: of all other matrices, with the head and without an embedding of its own, of
            which a step reads some rows only.
    """

    name: str
    shape: ModelShape
    experts: int
    chosen: int
    expert_bytes: int
    dense_bytes: int

    def weight_bytes(self, tokens: int) -> float:
        """Bytes of weights that a step reads at least. Tokens choose experts at random, as random
        weights have them do.
        """
        if not self.experts:
            return self.dense_bytes
        touched = 1 - (1 - self.chosen / self.experts) ** tokens
        return self.dense_bytes + touched * self.expert_bytes

    def step_bytes(self, sequences: int, context: int) -> float:
        """Bytes that a step of decodes moves at least."""
        return (
            self.weight_bytes(sequences) + sequences * (context + 1) * self.shape.kv_bytes_per_token
        )


def make(name: str, device: torch.device, **changes: int) -> tuple[PreTrainedModel, Shaped]:
    """A random model and its shape; `changes` are those of `make_model`."""
    model = make_model(name, device, **changes)
    return model, shaped(name, model)


def shaped(name: str, model: PreTrainedModel) -> Shaped:
    """The bytes that a model's decode steps have to read."""
    shape = trace(type(model), model.config, torch.bfloat16).shape
    experts = sum(p.nbytes for n, p in model.named_parameters() if ".experts." in n)
    every = sum(p.nbytes for p in model.parameters())
    modules: Any = model
    table: torch.Tensor = modules.get_input_embeddings().weight
    head: torch.Tensor = modules.get_output_embeddings().weight
    tied = table.data_ptr() == head.data_ptr()
    config: Any = model.config
    return Shaped(
        name,
        shape,
        getattr(config, "num_experts", 0) or 0,
        getattr(config, "num_experts_per_tok", 0) or 0,
        experts,
        every - experts - (0 if tied else table.nbytes),
    )
