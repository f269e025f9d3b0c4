"""A program in place of a model's modules: its memory, its proof, and what becomes of the model."""

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

from engine.api.config import EngineConfig
from engine.api.errors import ModelError
from engine.api.sampling import SamplingParams
from engine.batch.plan import NewSequence, Row, StepPlan
from engine.batch.shape import ModelShape
from engine.model.attention.interface import ATTENTION_NAME
from engine.model.checks.gate import checked_forward
from engine.model.program.forward import ProgramForward
from engine.model.program.operations.linear import Gated, Linear
from engine.model.program.pack import Packer
from engine.model.program.rotation import Rotations
from engine.model.program.verify import MismatchError
from engine.model.running.forward import ModuleForward, make_forward
from engine.model.running.runner import TorchRunner
from engine.model.tracing.trace import trace
from tests.support.native import EACH_LEVEL, kernels_or_skip
from tests.support.zoo import LATENT, MAX_LEN, MIXED, SERVED, tiny_model

native = kernels_or_skip()

CONFIG = EngineConfig(num_blocks=8, max_model_len=MAX_LEN, max_num_seqs=8)


ALL_BY_KERNELS = ("codegen", "gptj", "hunyuan_v1_dense", "nanochat", "opt")


def shape_of(model: PreTrainedModel) -> ModelShape:
    return trace(type(model), model.config, model.dtype).shape


def config_for(model: PreTrainedModel) -> EngineConfig:
    return replace(CONFIG, dtype=str(model.dtype).removeprefix("torch."))


def program_of(model: PreTrainedModel) -> ProgramForward:
    forward = make_forward(model, config_for(model), shape_of(model), "cpu")
    assert isinstance(forward, ProgramForward)
    return forward


def step(runner: TorchRunner, token_ids: tuple[int, ...]) -> torch.Tensor:
    """Logits after the last of a prompt's tokens."""
    blocks = tuple(range(-(-len(token_ids) // 16)))
    return runner.logits(
        StepPlan(
            1,
            (Row(0, 0, len(token_ids), blocks, True, True),),
            new=(NewSequence(0, token_ids, len(token_ids), SamplingParams(), 0, (), ()),),
        )
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [*sorted(SERVED | MIXED), "glm4_moe", "qwen2_moe"])
def test_every_architecture_passes_the_gate_as_a_program(name: str, dtype: torch.dtype) -> None:
    model = tiny_model(name, dtype=dtype)
    forward = checked_forward(model, config_for(model), shape_of(model), "cpu")
    assert isinstance(forward, ProgramForward)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [*sorted(LATENT), *ALL_BY_KERNELS])
def test_all_of_it_runs_by_kernels(name: str, dtype: torch.dtype) -> None:
    model = tiny_model(name, dtype=dtype)
    forward = checked_forward(model, config_for(model), shape_of(model), "cpu")
    assert isinstance(forward, ProgramForward)
    assert not forward.off_path


@pytest.mark.parametrize("level", EACH_LEVEL)
def test_every_level_gives_the_logits_of_the_model(level: str) -> None:
    model = tiny_model("qwen2")
    token_ids = tuple(range(3, 73))
    with torch.inference_mode():
        expected = copy.deepcopy(model)(torch.tensor([token_ids])).logits[0, -1]
    before = native.level()
    native.choose_level(level)
    try:
        forward = program_of(model)
        assert forward.attention == f"cpu ({level})"
        logits = step(TorchRunner(forward, config_for(model), shape_of(model)), token_ids)
    finally:
        native.choose_level(before)
    torch.testing.assert_close(logits[0], expected, atol=1e-4, rtol=1e-4)


def test_weights_go_over_into_the_program() -> None:
    model = tiny_model("llama")
    program_of(model)
    left = {name: p.numel() for name, p in model.named_parameters() if p.ndim == 2 and p.numel()}
    # The table of an embedding that no head shares is looked up as it is.
    assert set(left) == {"model.embed_tokens.weight"}


def test_a_tied_head_is_packed_once_and_looked_up_there() -> None:
    model = tiny_model("llama", tie_word_embeddings=True)
    token_ids = (5, 9, 100, 31)
    with torch.inference_mode():
        expected = copy.deepcopy(model)(torch.tensor([token_ids])).logits[0, -1]
    forward = program_of(model)
    assert all(not p.numel() for p in model.parameters() if p.ndim == 2)
    logits = step(TorchRunner(forward, config_for(model), shape_of(model)), token_ids)
    torch.testing.assert_close(logits[0], expected, atol=1e-4, rtol=1e-4)


def test_a_table_beside_a_head_in_one_piece_of_memory_is_not_the_head() -> None:
    model = tiny_model("llama")
    table, head = model.model.embed_tokens.weight, model.lm_head.weight
    head.data, table.data = torch.stack((head.data, table.data)).unbind()
    program_of(model)


def test_experts_lose_their_weights_to_the_program() -> None:
    model = tiny_model("gpt_oss")
    assert program_of(model).opaque == ()
    assert not any(p.numel() for p in model.model.layers[0].mlp.parameters() if p.ndim == 3)


def test_a_module_keeps_the_weights_that_it_shares_with_a_product() -> None:
    model = tiny_model("llama")
    first, second, _ = model.model.layers

    class Clipped(type(first.mlp)):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = super().forward(x).clamp(-2, 2)
            return result

    second.mlp = copy.copy(first.mlp)
    first.mlp.__class__ = Clipped
    token_ids = (5, 9, 100, 31)
    with torch.inference_mode():
        expected = copy.deepcopy(model)(torch.tensor([token_ids])).logits[0, -1]
    forward = program_of(model)
    assert forward.opaque == ("Clipped",)
    logits = step(TorchRunner(forward, config_for(model), shape_of(model)), token_ids)
    torch.testing.assert_close(logits[0], expected, atol=1e-4, rtol=1e-4)


def test_a_head_that_torch_runs_has_no_rows_where_none_samples() -> None:
    model = tiny_model("llama")

    class Greatest(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            logits = super().forward(x)
            return logits.clamp(max=logits.max() - 0.1)  # of no rows there is no greatest

    model.lm_head.__class__ = Greatest
    forward = program_of(model)
    assert forward.opaque == ("Greatest",)
    runner = TorchRunner(forward, config_for(model), shape_of(model))
    new = NewSequence(0, (5, 9, 100), 3, SamplingParams(), 0, (), ())
    assert not len(runner.logits(StepPlan(1, (Row(0, 0, 2, (0,), False, True),), new=(new,))))
    assert len(runner.logits(StepPlan(2, (Row(0, 2, 1, (), True, False),)))) == 1


def test_a_model_is_gone_with_its_program() -> None:
    model = tiny_model("llama")
    runner = TorchRunner(program_of(model), config_for(model), shape_of(model))
    remembered = weakref.ref(model)
    del model
    runner.close()
    gc.collect()
    assert remembered() is None


@pytest.mark.parametrize("kind", [Linear, Gated])
def test_a_kernel_that_computes_something_else_is_found(
    kind: type[Linear | Gated], monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = kind.pack

    def wrong(self: Any, packer: Packer) -> Any:
        products = packed(self, packer)
        for product in products:
            product.weight[::7] *= 1.5
        return products

    monkeypatch.setattr(kind, "pack", wrong)
    with pytest.raises(
        MismatchError, match=f"the kernel for {kind.__name__.lower()} differs from the model by"
    ):
        program_of(tiny_model("llama"))


def test_attention_is_not_blamed_for_the_rounding_of_rotations() -> None:
    model = tiny_model("qwen2", dtype=torch.bfloat16)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.bias *= 100
            layer.self_attn.k_proj.bias *= 300
    program_of(model)


def test_what_a_kernel_does_not_take_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = Linear.pack

    def short(self: Linear, packer: Packer) -> Any:
        (product,) = packed(self, packer)
        return (replace(product, weight=product.weight[:-1]),)

    monkeypatch.setattr(Linear, "pack", short)
    with pytest.raises(MismatchError, match="does not take what the model gives it: weight has"):
        program_of(tiny_model("llama"))


def test_a_rotation_by_other_angles_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = Rotations._tables_of

    def wrong(self: Any, *given: Any) -> Any:
        cos, sin = tables(self, *given)
        return cos, -sin

    monkeypatch.setattr(Rotations, "_tables_of", wrong)
    with pytest.raises(MismatchError, match="the kernel for attend differs"):
        program_of(tiny_model("llama"))


def test_weights_that_are_not_finite_are_told_as_such() -> None:
    model = tiny_model("llama")
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[3, 4] = float("nan")
    with pytest.raises(ModelError, match="LlamaForCausalLM gives logits that are not finite"):
        checked_forward(model, CONFIG, shape_of(model), "cpu")


def test_a_model_that_cannot_be_read_runs_module_by_module(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = tiny_model("llama")
    token_ids = (5, 9, 100, 31, 7, 7, 8)

    class Layer(type(model.model.layers[0])):  # type: ignore[misc]
        def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            return super().forward(hidden_states.cumsum(1) / 9, *args, **kwargs)

    for layer in model.model.layers:
        layer.__class__ = Layer
    with torch.inference_mode():
        expected = copy.deepcopy(model)(torch.tensor([token_ids])).logits[0, -1]
    with caplog.at_level(logging.WARNING):
        forward = make_forward(model, CONFIG, shape_of(model), "cpu")
    assert isinstance(forward, ModuleForward)
    assert forward.attention.startswith("cpu")
    assert "runs module by module" in caplog.text
    assert "cumsum in Layer" in caplog.text
    logits = step(TorchRunner(forward, CONFIG, shape_of(model)), token_ids)
    torch.testing.assert_close(logits[0], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "change", [{"block_size": 8}, {"dtype": "float16"}], ids=["block size", "type"]
)
def test_what_the_kernels_do_not_take_runs_on_torch(change: dict[str, Any]) -> None:
    model = tiny_model("llama", dtype=torch.float16 if "dtype" in change else torch.float32)
    forward = make_forward(model, replace(CONFIG, **change), shape_of(model))
    assert forward.attention == "torch"
    assert model.config._attn_implementation == ATTENTION_NAME


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab_size", [48, 101])  # the width of the model; no multiple of a tile
def test_logits_are_contiguous_and_exact(vocab_size: int, dtype: torch.dtype) -> None:
    model = tiny_model("llama", vocab_size=vocab_size, dtype=dtype)
    forward = program_of(model)
    runner = TorchRunner(forward, config_for(model), shape_of(model))
    new = tuple(NewSequence(q, (5, 9 + q), 2, SamplingParams(), 0, (), ()) for q in (0, 1))
    rows = tuple(Row(q, 0, 2, (q,), True, True) for q in (0, 1))
    logits = runner.logits(StepPlan(1, rows, new=new))
    assert logits.is_contiguous()
    assert (logits.shape, logits.dtype) == ((2, vocab_size), torch.float32)


def test_pools_may_be_changed_between_steps() -> None:
    model = tiny_model("llama")
    forward, shape = program_of(model), shape_of(model)
    token_ids = (5, 9, 100, 31)
    first = step(TorchRunner(forward, CONFIG, shape), token_ids).clone()
    small = replace(CONFIG, num_blocks=1)
    assert torch.equal(step(TorchRunner(forward, small, shape), token_ids), first)


def test_the_gate_has_room_for_its_steps_in_a_small_envelope() -> None:
    model = tiny_model("llama")
    config = replace(CONFIG, max_num_seqs=1, max_num_batched_tokens=4)
    assert isinstance(checked_forward(model, config, shape_of(model), "cpu"), ProgramForward)
