"""The operation of docs/examples/, as CONTRIBUTING.md has it: the tables are all that knows it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from engine.model.files.compact import CompactWeights
from engine.model.program import operations
from engine.model.program.forward import ProgramForward
from engine.model.program.fuse import fuse
from engine.model.program.graph import Graph
from engine.model.program.opaque import Opaque
from engine.model.program.saved import restore_graph, save_graph
from engine.model.program.verify import MismatchError, Wrong
from engine.model.running.forward import make_forward
from tests.engine.model.program.test_read import agree, found, rebuilt
from tests.support.examples import example
from tests.support.graphs import only
from tests.support.native import kernels_or_skip
from tests.support.zoo import tiny_model

squares = example("squares")
Squares = squares.Squares


class Squared(nn.Module):
    """The squares of a product, which no model that comes with transformers has."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.weight = inner.weight

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight).square()


def squared(dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    return rebuilt(tiny_model("llama", dtype=dtype), "self_attn.o_proj", Squared)


@pytest.fixture
def _tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables with this operation."""
    monkeypatch.setattr(operations, "OPERATIONS", (*operations.OPERATIONS, Squares))
    monkeypatch.setattr(operations, "READERS", (*operations.READERS, squares.read_squares))


def wrong_in(graph: Graph) -> tuple[Wrong, ...]:
    """Each of the operation's kernels, as if it were wrong."""
    return tuple(
        Wrong(at, "squares", one.out.width, "is set apart")
        for at, one in enumerate(graph.operations)
        if isinstance(one, Squares)
    )


def test_without_its_reader_torch_repeats_the_module() -> None:
    graph, _ = found(squared())
    assert {one.kind for one in only(Opaque, graph)} == {"Squared"}


@pytest.mark.usefixtures("_tables")
def test_it_is_read_in_each_layer_and_computes_the_recorded_logits() -> None:
    graph, recorded = found(squared())
    assert len(only(Squares, graph)) == 3
    assert not only(Opaque, graph)
    agree(graph, recorded)
    agree(fuse(graph), recorded)


@pytest.mark.usefixtures("_tables")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_its_kernels_agree_with_the_model(dtype: torch.dtype) -> None:
    kernels_or_skip()
    from tests.engine.model.program.test_forward import program_of

    forward = program_of(squared(dtype))
    assert (forward.opaque, forward.off_path) == ((), ())
    assert [one.operation.kind for one in forward._stages].count("squares") == 3


@pytest.mark.usefixtures("_tables")
def test_a_wrong_kernel_of_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels_or_skip()
    from tests.engine.model.program.test_forward import program_of

    pack = Squares.pack
    monkeypatch.setattr(Squares, "pack", lambda self, packer: packed_half(pack(self, packer)))
    with pytest.raises(MismatchError, match="the kernel for squares differs"):
        program_of(squared())


def packed_half(products: tuple[squares.Product, ...]) -> tuple[squares.Product, ...]:
    for one in products:
        one.weight.mul_(0.5)
    return products


@pytest.mark.usefixtures("_tables")
def test_torch_computes_it_in_place_of_its_kernel() -> None:
    kernels_or_skip()
    from tests.engine.model.program.test_forward import config_for, shape_of

    apart = wrong_in(fuse(found(squared())[0]))
    model = squared()
    forward = make_forward(model, config_for(model), shape_of(model), "cpu", apart=apart)
    assert isinstance(forward, ProgramForward)
    assert [(one.name, one.count) for one in forward.off_path] == [("squares", 3)]


@pytest.mark.usefixtures("_tables")
def test_its_graph_can_be_saved() -> None:
    model, weights = squared(), CompactWeights()
    graph, _ = found(model)
    stored = dict(model.named_parameters())
    for name, one in stored.items():
        weights.name(name, one)
    saved = save_graph(graph, weights)
    assert saved is not None
    read = only(Squares, restore_graph(saved, stored))
    assert [one.matrices()[0].data_ptr() for one in read] == [
        layer.self_attn.o_proj.weight.data_ptr() for layer in model.model.layers
    ]


@pytest.mark.usefixtures("_tables")
def test_it_has_a_launch_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from engine.model.gpu import launches
    from tests.engine.model.gpu.test_program import program_of

    with pytest.raises(AssertionError, match="squares has no launch"):
        program_of(squared())
    monkeypatch.setitem(launches.LAUNCHES, Squares, squares.launch_squares)
    forward = program_of(squared())
    assert (forward.opaque, forward.off_path) == ((), ())
