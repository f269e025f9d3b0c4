"""The fusion of docs/examples/, as CONTRIBUTING.md has it, from the model to the kernels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from engine.model.program import forward as program
from engine.model.program.fuse import fuse
from engine.model.program.graph import Graph
from engine.model.program.operations.elementwise import Elementwise
from engine.model.program.operations.linear import Linear
from tests.engine.model.program.test_read import agree, found, rebuilt
from tests.support.examples import example
from tests.support.graphs import only
from tests.support.native import kernels_or_skip
from tests.support.zoo import tiny_model

row_to_bias = example("row_to_bias").row_to_bias


class Shifted(nn.Module):
    """A product and then a row, as none of the models that come with transformers has it."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner
        self.row = nn.Parameter(torch.linspace(-1, 1, inner.out_features, dtype=inner.weight.dtype))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + self.row


class Both(Shifted):
    """The product is wanted without the row, too."""

    def forward(self, x: Tensor) -> Tensor:
        product = self.inner(x)
        return (product + self.row) * product


def shifted() -> PreTrainedModel:
    return rebuilt(tiny_model("llama"), "self_attn.o_proj", Shifted)


def changed(graph: Graph) -> Graph:
    return Graph(row_to_bias(graph.operations, graph.logits), graph.logits)


def test_the_row_becomes_a_bias_and_the_logits_stay() -> None:
    graph, recorded = found(shifted())
    before = len(graph.operations)
    graph = changed(graph)
    biased = [one for one in only(Linear, graph) if one.biases]
    assert len(biased) == before - len(graph.operations) > 0
    agree(graph, recorded)
    fused = fuse(graph)
    assert not only(Elementwise, fused)  # the residual goes into the product as well
    agree(fused, recorded)


def test_a_product_that_is_read_elsewhere_keeps_its_row() -> None:
    graph, recorded = found(rebuilt(tiny_model("llama"), "self_attn.o_proj", Both))
    before = len(graph.operations)
    graph = changed(graph)
    assert len(graph.operations) == before
    agree(graph, recorded)


def test_the_kernels_agree_with_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """`build` packs the bias and `verify` compares; a wrong one is found."""
    kernels_or_skip()
    from tests.engine.model.program.test_forward import program_of

    monkeypatch.setattr(program, "fuse", lambda graph: fuse(changed(graph)))
    program_of(shifted())

    def wrong(graph: Graph) -> Graph:
        graph = changed(graph)
        for one in only(Linear, graph):
            one.biases = tuple(-bias for bias in one.biases)
        return fuse(graph)

    monkeypatch.setattr(program, "fuse", wrong)
    with pytest.raises(program.MismatchError, match="the kernel for linear differs"):
        program_of(shifted())
