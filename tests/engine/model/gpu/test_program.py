"""A program of launches in place of a model's modules, under Triton's interpreter."""

from __future__ import annotations

import copy
import gc
import logging
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

pytest.importorskip("triton")

from engine.api.config import EngineConfig
from engine.batch.shape import ModelShape
from engine.cache.host_store import HostStore
from engine.model.checks.gate import checked_forward
from engine.model.gpu.forward import GpuForward, make_gpu_program
from engine.model.gpu.inputs import StepSize
from engine.model.gpu.program import GpuProgram
from engine.model.program.find import find_graph
from engine.model.program.fuse import fuse
from engine.model.program.operations.attend import Attend
from engine.model.program.operations.elementwise import Beside
from engine.model.program.operations.linear import Linear
from engine.model.program.verify import MismatchError, Wrong
from engine.model.running.forward import ModuleForward, make_forward
from engine.model.tracing.trace import trace
from tests.support.zoo import MAX_LEN, MIXED, SERVED, tiny_model

CONFIG = EngineConfig(num_blocks=8, max_model_len=MAX_LEN, max_num_seqs=8)
# One with biases, LayerNorm and learned positions, and one with experts.
FEW = ("gpt2", "qwen3_moe")


def shape_of(model: PreTrainedModel) -> ModelShape:
    return trace(type(model), model.config, model.dtype).shape


def config_for(model: PreTrainedModel) -> EngineConfig:
    return replace(CONFIG, dtype=str(model.dtype).removeprefix("torch."))


def program_of(model: PreTrainedModel) -> GpuForward:
    config, shape = config_for(model), shape_of(model)
    return make_gpu_program(model, config, shape)


@pytest.mark.parametrize(
    "name",
    [
        name if name in FEW else pytest.param(name, marks=pytest.mark.long)
        for name in sorted(SERVED | MIXED)
    ],
)
@pytest.mark.usefixtures("short_scripts")
def test_every_architecture_passes_the_gate_as_launches(name: str) -> None:
    model = tiny_model(name)
    forward = checked_forward(model, config_for(model), shape_of(model), "triton")
    assert isinstance(forward, GpuForward)


@pytest.mark.long
@pytest.mark.parametrize("name", ["gpt_oss", "mistral"])
def test_all_that_the_gate_tries_is_right_as_launches(name: str) -> None:
    model = tiny_model(name)
    forward = checked_forward(model, config_for(model), shape_of(model), "triton")
    assert isinstance(forward, GpuForward)


@pytest.mark.parametrize(("name", "names"), [("ctrl", {"add"}), ("beam", {"exp"})])
@pytest.mark.usefixtures("short_scripts")
def test_calls_that_no_kernel_computes_are_repeated_between_launches(
    name: str, names: set[str]
) -> None:
    model = tiny_model(name)
    forward = checked_forward(model, config_for(model), shape_of(model), "triton")
    assert isinstance(forward, GpuForward)
    assert set(forward.opaque) == names
    assert {one.name for one in forward.off_path} == names


def test_a_router_in_float32_is_a_product_of_parts() -> None:
    model = tiny_model("glm4_moe", dtype=torch.bfloat16)
    for name, module in model.named_modules():
        if name.endswith("mlp.gate"):
            matrix: torch.Tensor = module.weight.data.float()
            generator = torch.Generator().manual_seed(0)
            noise = torch.randn(matrix.shape, generator=generator) * matrix.std() * 2.0**-10
            module.weight.data = matrix + noise
    forward = program_of(model)
    assert forward.opaque == ()
    assert any(isinstance(one.operation, Beside) for one in forward._program.stages)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.bfloat16) for name in ("llama", "gpt_oss", "glm4_moe")),
        *((name, torch.float16) for name in ("llama", "qwen3_moe")),
    ],
)
def test_types_of_two_bytes_are_verified_by_their_own_rounding(
    name: str, dtype: torch.dtype
) -> None:
    forward = program_of(tiny_model(name, dtype=dtype))
    assert forward.opaque == ()


# Of a step of three layers. Llama's layers have two norms, four products, the rotation with the
# store, attention, and gate with up; around them are the embedding, the rows that sample of the
# last attention and of its residual, the last norm and the head. Qwen 3 norms queries and keys.
# Experts are the product of the router, five launches and the sum with the residual, in the place
# of two products and of gate with up.
LAUNCHES = {
    "llama": 3 * 9 + 5,
    "qwen3": 3 * 11 + 5,
    "gemma2": 3 * 14 + 5,
    "gemma3_text": 3 * 15 + 6,
    "gpt2": 40,
    "qwen3_moe": 3 * 15 + 5,
    "mixtral": 3 * 13 + 5,
    "gpt_oss": 3 * 14 + 5,
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_a_step_has_so_many_launches(name: str) -> None:
    forward = program_of(tiny_model(name))
    assert (forward.num_launches, forward.opaque) == (LAUNCHES[name], ())


@pytest.mark.parametrize("name", sorted((SERVED | MIXED).keys() - LAUNCHES.keys()))
def test_every_operation_of_every_architecture_agrees_with_eager_attention(name: str) -> None:
    """Those of the others are verified where their launches are counted."""
    assert isinstance(program_of(tiny_model(name)), GpuForward)


def test_a_layer_that_shares_keys_and_values_stores_none() -> None:
    forward = program_of(tiny_model("gemma4_text"))
    attending = [one.operation for one in forward._program.stages if one.given]
    assert [(one.layer, one.key is None) for one in attending if isinstance(one, Attend)] == [
        (0, False),
        (1, False),
        (1, True),
    ]


def test_residuals_are_added_in_place() -> None:
    forward = program_of(tiny_model("llama"))
    adding = [
        stage
        for stage in forward._program.stages
        if isinstance(stage.operation, Linear) and stage.operation.residual is not None
    ]
    assert len(adding) == 6
    places = {stage.out.data_ptr() for stage in adding if not stage.operation.out.per_sample}
    assert len(places) == 1


def test_a_kernel_that_computes_something_else_is_found_at_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from engine.model.gpu import launches

    norm = launches.norm

    def wrong(*arguments: Any) -> None:
        norm(*arguments)
        arguments[0][:, 1] = 3.0

    monkeypatch.setattr(launches, "norm", wrong)
    with pytest.raises(MismatchError, match="the kernel for norm differs from the model"):
        program_of(tiny_model("llama"))


@pytest.mark.usefixtures("short_scripts")
def test_what_a_kernel_gets_wrong_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.model.gpu import launches

    norm = launches.norm

    def wrong(*arguments: Any) -> None:
        norm(*arguments)
        arguments[0][:, 1] = 3.0

    monkeypatch.setattr(launches, "norm", wrong)
    with pytest.raises(MismatchError) as caught:
        program_of(tiny_model("llama"))
    assert [one.kind for one in caught.value.wrong] == ["norm"] * 7
    model = tiny_model("llama")
    forward = checked_forward(
        model, config_for(model), shape_of(model), "triton", apart=caught.value.wrong
    )
    assert isinstance(forward, GpuForward)
    # Those of all tokens, and the last two, of the rows that sample, have the same width.
    assert [(one.name, one.columns, one.count, one.share) for one in forward.off_path] == [
        ("norm", 48, 7, None)
    ]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("embed", "gpt2"),
        ("linear", "qwen2"),
        ("gated", "llama"),
        ("elementwise", "gemma2"),
        ("gather", "llama"),
        ("experts", "qwen3_moe"),
    ],
)
def test_torch_gives_what_a_launch_would(kind: str, name: str) -> None:
    model = tiny_model(name)
    graph, _ = find_graph(copy.deepcopy(model), shape_of(model), MAX_LEN)
    apart = [
        Wrong(at, kind, one.out.width, "is set apart")
        for at, one in enumerate(fuse(graph).operations)
        if one.kind == kind
    ]
    assert apart
    forward = make_gpu_program(model, config_for(model), shape_of(model), apart)
    assert sum(one.count for one in forward.off_path) == len(apart)


def test_attention_that_is_wrong_leaves_all_to_torch() -> None:
    model = tiny_model("llama")
    graph, _ = find_graph(copy.deepcopy(model), shape_of(model), MAX_LEN)
    at = next(at for at, one in enumerate(fuse(graph).operations) if isinstance(one, Attend))
    apart = [Wrong(at, "attend", 48, "differs from the model by 0.5")]
    with pytest.raises(MismatchError, match="the kernel for attend differs") as caught:
        make_gpu_program(model, config_for(model), shape_of(model), apart)
    assert caught.value.wrong == ()


def test_what_cannot_be_read_runs_module_by_module(caplog: pytest.LogCaptureFixture) -> None:
    model = tiny_model("llama")

    class Layer(type(model.model.layers[0])):  # type: ignore[misc]
        def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            return super().forward(hidden_states.cumsum(1) / 9, *args, **kwargs)

    for layer in model.model.layers:
        layer.__class__ = Layer
    with caplog.at_level(logging.WARNING):
        forward = make_forward(model, config_for(model), shape_of(model), "triton")
    assert isinstance(forward, ModuleForward)
    assert "runs module by module, without CUDA graphs" in caplog.text


def test_matrices_that_were_joined_are_let_go() -> None:
    model = tiny_model("llama")
    attention = model.model.layers[0].self_attn
    queries = weakref.ref(attention.q_proj.weight.untyped_storage())
    down = model.model.layers[0].mlp.down_proj.weight
    forward = program_of(model)
    gc.collect()
    assert queries() is None
    assert attention.q_proj.weight.numel() == 0
    assert down.numel() > 0, "it is used as it is"
    assert isinstance(forward._program, GpuProgram)


def test_matrices_right_behind_one_another_may_be_separate_all_the_same() -> None:
    """The allocator of a GPU puts them so. None may be read past its end."""
    model = tiny_model("llama")
    mlp = model.model.layers[0].mlp
    gate, up = mlp.gate_proj.weight, mlp.up_proj.weight
    memory = bytearray(gate.nbytes + up.nbytes)
    for weight, offset in ((gate, 0), (up, gate.nbytes)):
        lying = torch.frombuffer(memory, dtype=weight.dtype, count=weight.numel(), offset=offset)
        weight.data = lying.view_as(weight).copy_(weight.data)
    assert up.data_ptr() == gate.data_ptr() + gate.nbytes
    assert gate.untyped_storage().nbytes() == gate.nbytes
    assert isinstance(program_of(model), GpuForward)


def test_gate_and_up_in_one_matrix_are_not_copied() -> None:
    model = tiny_model("phi3")
    both = model.model.layers[0].mlp.gate_up_proj.weight.untyped_storage().data_ptr()
    forward = program_of(model)
    found = {one.operands.weight.data_ptr() for one in forward._program.products}
    assert both in found


def test_a_step_that_would_leave_the_programs_memory_is_refused() -> None:
    forward = program_of(tiny_model("llama"))
    with pytest.raises(ValueError, match="a step of 2049 tokens, 1 of which sample"):
        forward.layout(StepSize(2049, 1, chunks=True), 0)
    with pytest.raises(ValueError, match="65 of which sample"):
        forward.layout(StepSize(65, 65, chunks=False), 0)


def test_no_host_memory_is_taken_to_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    make = HostStore.__init__

    def watched(self: HostStore, num_rows: int, *arguments: Any, **named: Any) -> None:
        rows.append(num_rows)
        make(self, num_rows, *arguments, **named)

    monkeypatch.setattr(HostStore, "__init__", watched)
    model = tiny_model("llama")
    config = replace(config_for(model), num_host_blocks=50)
    shape = shape_of(model)
    make_gpu_program(model, config, shape)
    assert rows
    assert set(rows) == {0}
