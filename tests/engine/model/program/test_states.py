"""Programs of modules that keep states, and their states for each sequence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

import engine.model.state.modules
from engine.api.config import EngineConfig
from engine.api.sampling import SamplingParams
from engine.batch.plan import NewSequence, Row, StepPlan
from engine.model.attention.interface import ATTENTION_NAME
from engine.model.program.find import find_graph
from engine.model.program.forward import ProgramForward
from engine.model.program.fuse import fuse
from engine.model.program.opaque import Opaque
from engine.model.program.operations.attend import Attend
from engine.model.program.operations.convolve import Convolve, convolve
from engine.model.program.operations.linear import Linear
from engine.model.program.operations.recur import Recur
from engine.model.program.weights import Rows, dense
from engine.model.running.forward import make_forward
from engine.model.running.runner import TorchRunner
from engine.model.state.modules import StateModules
from engine.model.tracing.trace import trace
from tests.support.graphs import evaluate, only
from tests.support.native import kernels_or_skip
from tests.support.zoo import MAX_LEN, STATEFUL, VOCAB_SIZE, tiny_config, tiny_model

native = kernels_or_skip()

# What each has in a layer that keeps states, and the modules that stay as they are.
READ: dict[str, tuple[set[type], set[str]]] = {
    "lfm2": ({Convolve}, set()),
    "qwen3_next": ({Convolve, Recur}, set()),
    "bamba": ({Convolve, Recur}, set()),
    "mamba2": ({Convolve, Recur}, set()),
    "jamba": (set(), {"JambaMambaMixer"}),
    "minimax": (set(), {"MiniMaxLightningAttention"}),
}
DTYPES = (torch.float32, torch.bfloat16)


def graph_of(model: PreTrainedModel) -> tuple[Any, Any]:
    shape = trace(type(model), model.config, model.dtype).shape
    states = StateModules(model, 2, 0)
    model.set_attn_implementation(ATTENTION_NAME)
    return find_graph(model, shape, MAX_LEN, states)


@pytest.mark.parametrize(
    ("name", "dtype"),
    # In bfloat16, rounding sends tokens of MiniMax to other experts.
    [(name, one) for name in READ for one in DTYPES if name != "minimax" or one == torch.float32],
)
def test_a_graph_with_states_computes_the_recorded_logits(name: str, dtype: torch.dtype) -> None:
    kinds, opaque = READ[name]
    graph, recorded = graph_of(tiny_model(name, dtype=dtype))
    assert {kind for kind in (Convolve, Recur) if only(kind, graph)} == kinds
    assert {one.name for one in only(Opaque, graph)} == opaque
    with torch.inference_mode():
        got = evaluate(fuse(graph), recorded)
    expected = recorded.logits[0].double()
    allowed = 1e-4 if dtype == torch.float32 else 0.05
    assert float((got - expected).norm() / expected.norm()) < allowed


def test_the_modules_of_the_model_are_as_they_were_after_a_recording() -> None:
    model = tiny_model("lfm2")
    import transformers.models.lfm2.modeling_lfm2 as module

    before = dict(vars(module))
    graph_of(model)
    assert vars(module) == before


def qwen3_5(**changes: Any) -> PreTrainedModel:
    """A gated delta net whose values have more heads than its keys, and attention with a gate."""
    config = AutoConfig.for_model(
        "qwen3_5_text",
        **{
            "hidden_size": 48,
            "intermediate_size": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "vocab_size": VOCAB_SIZE,
            "pad_token_id": None,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 12,
        }
        | changes,
    )
    torch.manual_seed(7)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    return model


def test_a_delta_net_is_read_whole() -> None:
    graph, recorded = graph_of(qwen3_5())
    assert not only(Opaque, graph)
    assert {one.way.key_heads for one in only(Recur, graph)} == {2}
    assert {one.way.heads for one in only(Recur, graph)} == {4}
    assert all(one.query_rotation for one in only(Attend, graph))
    with torch.inference_mode():
        got = evaluate(fuse(graph), recorded)
    torch.testing.assert_close(got, recorded.logits[0].double(), rtol=1e-4, atol=1e-4)


def test_columns_that_lie_apart_are_a_product_of_some_rows() -> None:
    # Queries and their gates take turns in the columns of one product.
    model = qwen3_5()
    graph, _ = graph_of(model)
    picked = [one for one in only(Linear, graph) if isinstance(one.weights[0], Rows)]
    weight = model.model.layers[1].self_attn.q_proj.weight
    found = {int(one.weights[0].index[0]): one.weights[0] for one in picked}
    assert sorted(found) == [0, 16]
    for first, rows in found.items():
        heads = [weight[32 * head + first : 32 * head + first + 16] for head in range(4)]
        assert torch.equal(dense(rows), torch.cat(heads))


def test_weights_that_are_read_in_parts_are_let_go() -> None:
    model = qwen3_5()
    weight = model.model.layers[1].self_attn.q_proj.weight
    forward, _ = forward_of(model)
    assert isinstance(forward, ProgramForward)
    assert weight.numel() == 0


def forward_of(model: PreTrainedModel, num_snapshots: int = 1) -> tuple[Any, TorchRunner]:
    shape = trace(type(model), model.config, model.dtype).shape
    config = EngineConfig(
        num_blocks=16,
        max_model_len=MAX_LEN,
        max_num_seqs=3,
        num_snapshots=num_snapshots,
        dtype=str(model.dtype).removeprefix("torch."),
    )
    forward = make_forward(model, config, shape, "cpu")
    return forward, TorchRunner(forward, config, shape)


def new(seq: int, token_ids: list[int]) -> NewSequence:
    return NewSequence(seq, tuple(token_ids), len(token_ids), SamplingParams(), 0, (), ())


TOKENS = [(7 * i + 3) % VOCAB_SIZE for i in range(20)]


@pytest.mark.parametrize("name", [*READ, "qwen3_5"])
def test_states_go_on_from_chunk_to_chunk_and_from_snapshots(name: str) -> None:
    model = qwen3_5() if name == "qwen3_5" else tiny_model(name)
    with torch.inference_mode():
        expected = model(torch.tensor([TOKENS])).logits[0]
    forward, runner = forward_of(model)
    assert isinstance(forward, ProgramForward)

    def close(logits: torch.Tensor, *tokens: int) -> None:
        torch.testing.assert_close(logits, expected[list(tokens)], rtol=1e-3, atol=1e-3)

    # A sequence of another length takes part, so that neither slots nor rows are in order.
    rows = (Row(1, 0, 3, (5,), True, True), Row(0, 0, 16, (0,), True, True))
    others = new(1, TOKENS), new(0, TOKENS)
    close(runner.logits(StepPlan(1, rows, new=others, saves=((0, 0),))), 2, 15)
    rows = (Row(0, 16, 1, (1,), True, False), Row(1, 3, 1, (), True, False))
    close(runner.logits(StepPlan(2, rows)), 16, 3)
    # The state of the first 16 tokens goes to a sequence that has their block.
    fork = NewSequence(2, tuple(TOKENS), len(TOKENS), SamplingParams(), 0, (), (0,))
    rows = (Row(1, 4, 6, (), True, True), Row(2, 16, 4, (2,), True, True))
    plan = StepPlan(3, rows, new=(fork,), restores=((0, 2),))
    close(runner.logits(plan), 9, 19)
    close(runner.logits(StepPlan(4, (Row(0, 17, 1, (), True, False),))), 17)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", READ)
def test_states_take_no_more_than_the_trace_says(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert name in STATEFUL
    made: list[StateModules] = []

    def make(*args: Any) -> StateModules:
        made.append(StateModules(*args))
        return made[-1]

    monkeypatch.setattr(engine.model.state.modules, "StateModules", make)
    model = tiny_model(name, dtype=dtype)
    planned = trace(type(model), tiny_config(name), dtype).shape.state_bytes
    forward_of(model)
    assert 0 < made[0].slots.bytes_per_sequence <= planned


def test_a_convolution_sees_no_later_token() -> None:
    x, weight = torch.randn(9, 4), torch.randn(3, 4)
    out = convolve(x, weight, None)
    assert torch.equal(convolve(x[:5], weight, None), out[:5])
    torch.testing.assert_close(out[2], (x[:3].double() * weight.double()).sum(0))
