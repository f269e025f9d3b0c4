"""Mixtures of experts are read as operations, or stay modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.model.attention.interface import ATTENTION_NAME
from engine.model.program import operations
from engine.model.program.activations import ACTIVATIONS
from engine.model.program.capture import Capture
from engine.model.program.find import find_graph
from engine.model.program.fuse import fuse
from engine.model.program.graph import Graph
from engine.model.program.opaque import Opaque
from engine.model.program.operations import experts
from engine.model.program.operations.experts import Experts, Gating, guess_gating
from engine.model.program.operations.linear import Linear
from engine.model.program.provenance import Provenance
from engine.model.program.routing import Routed, Routing, guess_routing, settled
from engine.model.tracing.trace import trace
from tests.support.graphs import evaluate, only
from tests.support.zoo import MAX_LEN, tiny_model

MIXTURES = ("gpt_oss", "mixtral", "qwen3_moe", "glm4_moe", "qwen2_moe")


def found(model: PreTrainedModel, with_experts: bool = True) -> tuple[Graph, Capture]:
    shape = trace(type(model), model.config, model.dtype).shape
    model.set_attn_implementation(ATTENTION_NAME)
    return find_graph(model, shape, MAX_LEN, with_experts=with_experts)


def experts_of(graph: Graph) -> list[Experts]:
    return [one for one in graph.operations if isinstance(one, Experts)]


@pytest.mark.parametrize("name", MIXTURES)
def test_graph_with_experts_computes_the_recorded_logits(name: str) -> None:
    graph, recorded = found(tiny_model(name))
    assert experts_of(graph)
    assert not only(Opaque, graph)
    for change in (lambda graph: graph, fuse):
        with torch.inference_mode():
            got = evaluate(change(graph), recorded)
        torch.testing.assert_close(got, recorded.logits[0].double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", MIXTURES)
def test_experts_are_read_on_the_device_that_they_are_on(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New tensors have the device of the recorded tensors, and not torch's default, which is
    another one here: torch refuses to compute with both.
    """

    def by_numbers(of: Callable[..., Any]) -> Callable[..., Any]:
        def found(*arguments: Any) -> Any:
            with torch.device("cpu"):
                return of(*arguments)

        return found

    def elsewhere(*arguments: Any) -> Any:
        with torch.device("meta"):
            return experts.read_experts(*arguments)

    # Activations are found by numbers of the host, and places of columns are such.
    monkeypatch.setattr(experts, "_weights", by_numbers(experts._weights))
    monkeypatch.setattr(Provenance, "view", by_numbers(Provenance.view))
    readers = [elsewhere if one is experts.read_experts else one for one in operations.READERS]
    monkeypatch.setattr(operations, "READERS", readers)
    graph, _ = found(tiny_model(name))
    assert experts_of(graph)


@pytest.mark.parametrize("name", MIXTURES)
def test_in_bfloat16_experts_are_read_too(name: str) -> None:
    graph, _ = found(tiny_model(name, dtype=torch.bfloat16))
    assert experts_of(graph)
    assert not only(Opaque, graph)


@pytest.mark.parametrize("is_exact", [True, False])
def test_a_router_in_float32_is_read_beside_experts_in_bfloat16(is_exact: bool) -> None:
    """As transformers loads those of DeepSeek, GLM and Ernie, whatever the others' type."""
    model = tiny_model("glm4_moe", dtype=torch.bfloat16)
    routers = [one for name, one in model.named_modules() if name.endswith("mlp.gate")]
    for router in routers:
        matrix = router.weight.data.float()
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(matrix.shape, generator=generator) * matrix.std() * 2.0**-10
        router.weight.data = matrix if is_exact else matrix + noise
    graph, _ = found(model)
    assert len(experts_of(graph)) == len(routers)
    assert not only(Opaque, graph)
    makers = {id(one.out): one for one in graph.operations}
    for router, mixture in zip(routers, experts_of(graph), strict=True):
        product = makers[id(mixture.logits.value)]
        assert isinstance(product, Linear)
        (matrix,) = product.weights
        assert isinstance(matrix, torch.Tensor)
        assert matrix.dtype == torch.bfloat16
        parts = matrix.float().chunk(1 if is_exact else 3, dim=1)
        assert torch.equal(torch.stack(parts).sum(0), router.weight)
        got = product.compute(lambda view: view.reference.double())
        torch.testing.assert_close(got, product.out.reference.double(), rtol=1e-5, atol=1e-5)


def test_groups_corrections_and_factors_are_found() -> None:
    model = tiny_model("glm4_moe")
    for name, buffer in model.named_buffers():
        if "correction" in name:
            buffer.normal_(generator=torch.Generator().manual_seed(1)).mul_(0.2)
    graph, _ = found(model)
    routing = experts_of(graph)[0].routing
    assert (routing.groups, routing.kept, routing.best) == (4, 2, 2)
    assert routing.score == "sigmoid"
    assert routing.normalised
    assert routing.scale == pytest.approx(2.5)
    assert routing.correction is not None


def test_a_factor_of_each_expert_is_found() -> None:
    """As Gemma 4 has it: else its layers, which hold attention, would stay modules."""
    model = tiny_model(
        "gemma4_text",
        enable_moe_block=True,
        num_experts=4,
        top_k_experts=2,
        moe_intermediate_size=32,
    )
    factors = model.get_parameter("model.layers.0.router.per_expert_scale")
    factors.data = torch.tensor([0.5, 1.5, 2.0, 0.75])
    graph, recorded = found(model)
    assert not only(Opaque, graph)
    first = experts_of(graph)[0].routing.factors
    assert first is not None
    assert torch.equal(first, factors)
    with torch.inference_mode():
        got = evaluate(fuse(graph), recorded)
    torch.testing.assert_close(got, recorded.logits[0].double(), rtol=1e-4, atol=1e-4)


def test_without_experts_the_modules_around_them_stay() -> None:
    graph, _ = found(tiny_model("mixtral"), with_experts=False)
    kinds = {one.name for one in graph.operations if isinstance(one, Opaque)}
    assert kinds == {"MixtralSparseMoeBlock"}
    assert not experts_of(graph)


def test_only_rows_that_sample_go_to_the_last_experts() -> None:
    graph, _ = found(tiny_model("qwen3_moe"))
    assert [one.out.per_sample for one in experts_of(fuse(graph))] == [False, False, True]


def jittered(model: PreTrainedModel) -> None:
    """Weights that depend on more than the logits."""
    for module in model.modules():
        if type(module).__name__ == "MixtralTopKRouter":

            class Jittered(type(module)):  # type: ignore[misc]
                def forward(self, x: Tensor) -> Any:
                    logits, weights, index = super().forward(x)
                    return logits, weights * x[:, :1].sigmoid(), index

            module.__class__ = Jittered


def normed(model: PreTrainedModel) -> None:
    """Experts that compute more than gate, up and down."""
    for module in model.modules():
        if type(module).__name__ == "MixtralExperts":

            class Normed(type(module)):  # type: ignore[misc]
                def forward(self, *args: Any) -> Any:
                    result = super().forward(*args)
                    return result / (1 + result.norm(dim=-1, keepdim=True))

            module.__class__ = Normed


@pytest.mark.parametrize("change", [jittered, normed])
def test_experts_that_are_not_understood_stay_modules(
    change: Callable[[PreTrainedModel], None],
) -> None:
    model = tiny_model("mixtral")
    change(model)
    graph, _ = found(model)
    assert only(Opaque, graph)
    assert not experts_of(graph)


# Routings


def routed(routing: Routing, rows: int = 80, experts: int = 16) -> Routed:
    logits = torch.randn(rows, experts, generator=torch.Generator().manual_seed(4))
    index, weight = routing.choose(logits)
    # Models give them in any order.
    return Routed(logits, index.flip(-1), weight.flip(-1).float())


CORRECTION = torch.randn(16, generator=torch.Generator().manual_seed(5)) / 4
ROUTINGS = [
    Routing(4, "softmax"),
    Routing(4, "softmax", normalised=False),
    Routing(4, "softmax", normalised=False, groups=4, kept=2, scale=16.0),
    Routing(4, "sigmoid", normalised=True),
    Routing(4, "sigmoid", correction=CORRECTION, scale=2.5),
    Routing(4, "softmax", correction=CORRECTION / 10, normalised=False),
    Routing(4, "sigmoid", correction=CORRECTION, groups=4, kept=2, best=2),
    Routing(1, "softmax"),
    Routing(4, "softmax", factors=CORRECTION.abs() + 0.5),
]


@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_routing_is_guessed(routing: Routing) -> None:
    own = [one for one in (routing.correction, routing.factors) if one is not None]
    guess = guess_routing(routed(routing), [torch.ones(16), *own], None)
    assert guess is not None
    other = routed(routing, rows=300)
    index, weight = guess.choose(other.logits)
    assert index.sort().values.equal(other.index.sort().values)
    torch.testing.assert_close(weight.flip(-1).float(), other.weight, rtol=1e-4, atol=1e-6)


def test_a_choice_that_no_routing_makes_is_none() -> None:
    given = routed(Routing(4, "softmax"))
    assert (
        guess_routing(Routed(given.logits, (given.index + 1) % 16, given.weight), [], None) is None
    )
    wrong = given.weight.clone()
    wrong[7] = wrong[7].flip(-1)
    assert guess_routing(Routed(given.logits, given.index, wrong), [], None) is None


def test_equal_logits_may_be_chosen_either_way() -> None:
    logits = torch.zeros(30, 8, dtype=torch.bfloat16)
    logits[:, 5] = 1.0
    index = torch.tensor([5, 7]).expand(30, 2)
    weight = logits.float().softmax(-1).gather(-1, index)
    weight /= weight.sum(-1, keepdim=True)
    given = Routed(logits, index, weight)
    # Ours takes the first of the equal ones. So did the model, but for some rows.
    first = torch.tensor([5, 0]).expand(22, 2)
    given = Routed(logits, torch.cat([first, index[22:]]), weight)
    guess = guess_routing(given, [], None)
    assert guess is not None
    chosen, _ = guess.choose(settled(guess, given))
    assert chosen.sort().values.equal(given.index.sort().values)


def test_scores_that_bfloat16_makes_equal_may_be_chosen_either_way() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(200, 16, generator=generator)).bfloat16()
    correction = torch.linspace(-0.1, 0.1, 16)
    scores = logits.sigmoid()
    index = (scores + correction).topk(2).indices
    chosen = scores.gather(-1, index)
    routed = Routed(logits, index, chosen / chosen.sum(-1, keepdim=True))
    found = guess_routing(routed, [correction], None)
    assert found is not None
    assert (found.score, found.normalised) == ("sigmoid", True)
    ours, _ = found.choose(logits)
    assert not torch.equal(ours.sort().values, index.sort().values)
    ours, _ = found.choose(settled(found, routed))
    assert torch.equal(ours.sort().values, index.sort().values)


def test_a_choice_among_equals_is_of_the_correction_that_makes_it() -> None:
    correction = CORRECTION[:8]
    logits = torch.zeros(30, 8)
    index = correction.topk(2).indices.expand(30, 2)
    given = Routed(logits, index, torch.full((30, 2), 0.5))
    guess = guess_routing(given, [correction], None)
    assert guess is not None
    assert guess.correction is not None
    assert guess_routing(given, [], None) is None


# Gates


def clipped(x: Tensor) -> Tensor:
    gate, up = x[..., ::2].clamp(max=7), x[..., 1::2].clamp(-7, 7)
    return gate * torch.sigmoid(1.702 * gate) * (up + 1)


def halves(name: str) -> Callable[[Tensor], Tensor]:
    def gate(x: Tensor) -> Tensor:
        gate, up = x.chunk(2, -1)
        return ACTIVATIONS[name](gate) * up

    return gate


def test_gates_are_guessed() -> None:
    assert guess_gating(clipped) == Gating(True, "quick_gelu", 7.0, 1.0)
    for name in ("silu", "gelu", "gelu_tanh", "relu2"):
        assert guess_gating(halves(name)) == Gating(False, name)


def test_a_gate_of_none_of_ours_is_none() -> None:
    assert guess_gating(lambda x: halves("silu")(x).clamp(-3, 3)) is None
    assert guess_gating(lambda x: halves("silu")(x) + 1) is None
    assert guess_gating(lambda x: x[:, :3]) is None
