"""A value that is changed in place is another one from then on, at the same memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from engine.model.program.capture import Capture, capture
from engine.model.program.find import find_graph
from engine.model.program.fuse import fuse
from engine.model.program.graph import Graph
from engine.model.program.opaque import Opaque
from engine.model.program.read import read
from engine.model.program.unreadable import UnreadableError
from engine.model.program.writes import out_of_place
from engine.model.tracing.trace import trace
from tests.support.graphs import evaluate, only
from tests.support.zoo import MAX_LEN, tiny_model


class Around(nn.Module):
    """Does something to what a module gives."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.change(self.inner(x))

    def change(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class Halved(Around):
    def change(self, x: Tensor) -> Tensor:
        x.mul_(0.5)
        return x


class Multiplied(Around):
    """By a number that is a tensor of one axis."""

    def change(self, x: Tensor) -> Tensor:
        x *= torch.full((1,), 0.25)
        return x


class ReadBefore(Around):
    def change(self, x: Tensor) -> Tensor:
        before = x * 3
        x.mul_(0.5)
        return before + x


class ReadByAnotherName(Around):
    """A view sees the change, too."""

    def change(self, x: Tensor) -> Tensor:
        same = x.view(-1, x.shape[-1])
        x.div_(4).tanh_()
        return same.view(x.shape) * 4


class ThroughAView(Around):
    def change(self, x: Tensor) -> Tensor:
        x.view(-1, x.shape[-1]).mul_(0.5)
        return x


class Sum(Around):
    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        y += x
        return y


class Rectified(Around):
    """By a module of torch, whose name says nothing."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__(inner)
        self.rectify = nn.ReLU(inplace=True)

    def change(self, x: Tensor) -> Tensor:
        self.rectify(x)
        return x


class Stored(Around):
    def change(self, x: Tensor) -> Tensor:
        x[..., :3] = 0
        return x


class InPart(Around):
    def change(self, x: Tensor) -> Tensor:
        x[..., :8].mul_(0.5)
        return x


class Reordered(Around):
    def change(self, x: Tensor) -> Tensor:
        x.copy_(x.flip(1))
        return x


def with_mlp(kind: Any) -> PreTrainedModel:
    model = tiny_model("llama")
    for layer in model.model.layers:
        layer.mlp = kind(layer.mlp)
    return model


def found(model: PreTrainedModel) -> tuple[Graph, Capture]:
    return find_graph(model, trace(type(model), model.config, model.dtype).shape, MAX_LEN)


def agree(graph: Graph, recorded: Capture) -> None:
    with torch.inference_mode():
        got = evaluate(graph, recorded)
    torch.testing.assert_close(got, recorded.logits[0].double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "kind", [Halved, Multiplied, ReadBefore, ReadByAnotherName, ThroughAView, Sum]
)
def test_a_change_of_a_whole_value_is_read(kind: type[Around]) -> None:
    graph, recorded = found(with_mlp(kind))
    assert any(call.changed for call in recorded.calls)
    assert not only(Opaque, graph)
    agree(graph, recorded)
    agree(fuse(graph), recorded)


@pytest.mark.parametrize("kind", [Halved, ReadBefore, ReadByAnotherName, Sum])
def test_values_keep_what_they_were_before(kind: type[Around]) -> None:
    graph, recorded = found(with_mlp(kind))
    values: dict[int, Tensor] = {}
    with torch.inference_mode():
        evaluate(graph, recorded, values)
    for operation in graph.operations:
        torch.testing.assert_close(
            values[id(operation.out)], operation.out.reference.double(), rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("kind", [Rectified, Stored, InPart, Reordered])
def test_any_other_change_stays_in_its_module(kind: type[Around]) -> None:
    model = with_mlp(kind)
    shape = trace(type(model), model.config, model.dtype).shape
    recorded = capture(model, shape, frozenset(), frozenset(), MAX_LEN)
    assert any(call.changed for call in recorded.calls)
    with pytest.raises(UnreadableError):
        read(recorded, frozenset(), frozenset(), MAX_LEN)
    graph, recorded = found(model)
    assert {one.name for one in only(Opaque, graph)} == {kind.__name__}
    agree(graph, recorded)


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("mul_", "mul"),
        ("__imul__", "__mul__"),
        ("__itruediv__", "__truediv__"),
        ("mul", "mul"),
        ("__mul__", "__mul__"),
        ("__invert__", "__invert__"),
        ("__setitem__", "__setitem__"),
    ],
)
def test_names_of_torch_say_what_changes_in_place(name: str, plain: str) -> None:
    assert out_of_place(name) == plain
