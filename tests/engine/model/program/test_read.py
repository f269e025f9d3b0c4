"""Operations read from a recorded pass, and those made from them, compute the recorded logits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from engine.model.attention.interface import ATTENTION_NAME
from engine.model.program import find
from engine.model.program.capture import Capture, Site, capture
from engine.model.program.find import find_graph
from engine.model.program.fuse import fuse
from engine.model.program.graph import Graph
from engine.model.program.opaque import Opaque
from engine.model.program.operations.attend import Attend
from engine.model.program.operations.elementwise import Elementwise
from engine.model.program.operations.embed import Embed
from engine.model.program.operations.gather import Gather
from engine.model.program.operations.linear import Gated, Linear
from engine.model.program.operations.norm import Norm
from engine.model.program.unreadable import UnreadableError
from engine.model.tracing.latents import extract_expansions
from engine.model.tracing.trace import trace
from tests.support.graphs import evaluate, only
from tests.support.zoo import LATENT, MAX_LEN, MIXED, SERVED, WRAPPERS, tiny_model

ALSO = ("codegen", "gptj", "hunyuan_v1_dense", "nanochat", "opt")


def found(model: PreTrainedModel) -> tuple[Graph, Capture]:
    shape = trace(type(model), model.config, model.dtype).shape
    model.set_attn_implementation(ATTENTION_NAME)
    expansions = extract_expansions(model) if shape.has_latents else None
    return find_graph(model, shape, MAX_LEN, expansions=expansions)


def agree(graph: Graph, recorded: Capture) -> None:
    with torch.inference_mode():
        got = evaluate(graph, recorded)
    torch.testing.assert_close(got, recorded.logits[0].double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [*sorted(SERVED | MIXED | LATENT), *ALSO])
def test_graph_keeps_no_modules_and_computes_the_recorded_logits(name: str) -> None:
    graph, recorded = found(tiny_model(name))
    assert not only(Opaque, graph)
    agree(graph, recorded)
    agree(fuse(graph), recorded)


def test_a_query_that_is_cast_twice_and_rotated_is_read() -> None:
    graph, _ = found(tiny_model("ernie4_5", dtype=torch.bfloat16))
    assert not only(Opaque, graph)
    assert all(one.query_rotation and one.key_rotation for one in only(Attend, graph))


@pytest.mark.parametrize("name", sorted(WRAPPERS))
def test_the_text_of_a_wrapper_is_read_whole(name: str) -> None:
    graph, recorded = found(tiny_model(name))
    assert not only(Opaque, graph)
    agree(fuse(graph), recorded)


@pytest.mark.parametrize("name", ["llama", "qwen2", "mistral", "phi3", "smollm3", "granite"])
def test_a_layer_becomes_seven_operations(name: str) -> None:
    model = tiny_model(name)
    graph, _ = found(model)
    kinds = Counter(type(operation).__name__ for operation in fuse(graph).operations)
    layers = model.config.num_hidden_layers
    assert kinds["Attend"] == kinds["Gated"] == layers
    assert kinds["Linear"] == 3 * layers + 1
    assert kinds["Norm"] == 2 * layers + 1


def test_rows_that_do_not_sample_are_left_after_the_last_attention() -> None:
    graph = fuse(found(tiny_model("llama"))[0])
    kinds = [type(operation) for operation in graph.operations]
    after = graph.operations[len(kinds) - kinds[::-1].index(Attend) :]
    assert all(operation.out.per_sample for operation in after)


def test_an_embedding_that_is_scaled_is_a_table_and_a_factor() -> None:
    graph, _ = found(tiny_model("gemma2"))
    scale = graph.operations[1]
    assert isinstance(scale, Elementwise)
    assert scale.alpha == pytest.approx(48**0.5, rel=1e-3)


def test_an_embedding_may_be_normed_by_its_module() -> None:
    class Normed(nn.Embedding):
        def __init__(self, inner: nn.Embedding) -> None:
            super().__init__(*inner.weight.shape, _weight=inner.weight)
            self.norm = nn.RMSNorm(inner.embedding_dim, eps=1e-6)

        def forward(self, ids: Tensor) -> Tensor:
            result: Tensor = self.norm(super().forward(ids))
            return result

    model = tiny_model("llama")
    model.set_input_embeddings(Normed(model.get_input_embeddings()))
    graph, recorded = found(model)
    assert [type(one) for one in graph.operations[:2]] == [Embed, Norm]
    assert not only(Opaque, graph)
    agree(graph, recorded)


def test_a_layer_that_shares_keys_and_values_reads_those_of_the_other() -> None:
    graph, _ = found(tiny_model("gemma4_text"))
    layers = [(one.layer, one.key is None, one.value is None) for one in only(Attend, graph)]
    assert layers == [(0, False, False), (1, False, False), (1, True, True)]
    assert all(one.query_rotation for one in only(Attend, graph))


class Steep(nn.Module):
    """An activation with an argument of its own."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.softplus(self.inner(x), beta=2.0)


def test_an_activation_with_another_argument_is_another_one() -> None:
    graph, recorded = found(rebuilt(tiny_model("llama"), "mlp", Steep))
    assert {one.name for one in only(Opaque, graph)} == {"Steep"}
    agree(graph, recorded)


class Spread(nn.Module):
    """Adds to, or multiplies, groups of columns by one number each, made of the columns or not."""

    def __init__(self, inner: nn.Module, *, adds: bool = False) -> None:
        super().__init__()
        self.inner, self.adds = inner, adds
        self.gate = nn.Linear(48, 6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        groups = self.inner(x).view(*x.shape[:-1], 6, 8)
        gate = self.gate(x)[..., None]
        return (groups + gate if self.adds else torch.sigmoid(gate) * groups).view(x.shape)


@pytest.mark.parametrize("adds", [False, True])
def test_a_number_for_each_group_of_columns_is_read(adds: bool) -> None:
    model = rebuilt(tiny_model("llama"), "mlp", lambda inner: Spread(inner, adds=adds))
    graph, recorded = found(model)
    assert not only(Opaque, graph)
    agree(graph, recorded)
    agree(fuse(graph), recorded)


def test_norms_of_gemma_add_one_to_their_weights() -> None:
    model = tiny_model("gemma2")
    graph, _ = found(model)
    norm = next(operation for operation in graph.operations if isinstance(operation, Norm))
    assert norm.weight is not None
    expected = 1 + model.model.layers[0].input_layernorm.weight
    torch.testing.assert_close(norm.weight, expected.detach())


def rebuilt(model: PreTrainedModel, path: str, make: Any) -> PreTrainedModel:
    """The model with one module wrapped, in every layer."""
    for layer in model.model.layers:
        parent = layer.get_submodule(path.rpartition(".")[0])
        name = path.rpartition(".")[2]
        setattr(parent, name, make(getattr(parent, name)))
    return model


class Mixing(nn.Module):
    """Looks at the other rows, which no kernel of ours does."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x + x.cumsum(dim=1) / 100)


def test_what_cannot_be_read_stays_a_module_by_itself() -> None:
    model = rebuilt(tiny_model("llama"), "mlp", Mixing)
    graph, recorded = found(model)
    assert {one.name for one in only(Opaque, graph)} == {"Mixing"}
    agree(graph, recorded)


def test_attention_is_never_hidden_in_a_module() -> None:
    model = rebuilt(tiny_model("llama"), "self_attn.q_proj", Clipping)
    graph, recorded = found(model)
    assert {one.name for one in only(Opaque, graph)} == {"Clipping"}
    agree(graph, recorded)

    class Layer(type(model.model.layers[0])):  # type: ignore[misc]
        def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
            return super().forward(hidden_states.cumsum(dim=1) / 30, *args, **kwargs)

    for layer in model.model.layers:
        layer.__class__ = Layer
    with pytest.raises(UnreadableError, match="cumsum in Layer"):
        found(model)


def limited(x: Tensor) -> Tensor:
    return x.clamp(-0.5, 0.5)


def sharpened(x: Tensor) -> Tensor:
    """By the mean of each row, made in two functions that kernels do not compute."""
    return x * (x.square().mean(-1, keepdim=True) + 1).sqrt()


def in_heads(x: Tensor) -> Tensor:
    """In memory that has the tokens of each head beside each other."""
    heads = x.view(*x.shape[:-1], 4, -1).transpose(1, 2).contiguous()
    return torch.stack((heads.sin(), heads.cos()))[0].transpose(1, 2).reshape(x.shape)


def halves_exchanged(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((second, first), -1)


def partly_changed(x: Tensor) -> Tensor:
    """In place, of which the rest is read too."""
    x = x.sin()
    x[..., :8] += 1
    return x


def filled(x: Tensor) -> Tensor:
    """Memory that is the same in each step, but for its rows, and then is not."""
    made = torch.zeros(x.shape)
    made[..., 1:] = x[..., :-1]
    return made


def greatest(x: Tensor) -> Tensor:
    """By numbers and their indices."""
    numbers, index = x.topk(4, -1)
    return torch.zeros_like(x).scatter(-1, index, numbers)


def of_layer(change: Callable[[Tensor], Tensor]) -> PreTrainedModel:
    """A model that changes what its layers, which attend, are given."""
    model = tiny_model("llama")

    class Layer(type(model.model.layers[0])):  # type: ignore[misc]
        def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
            return super().forward(change(hidden_states), *args, **kwargs)

    for layer in model.model.layers:
        layer.__class__ = Layer
    return model


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (limited, {"clamp"}),
        (sharpened, {"sqrt"}),
        (in_heads, {"stack"}),
        (halves_exchanged, {"cat"}),
        (partly_changed, {"sin", "add", "setitem"}),
        (filled, {"zeros", "setitem"}),
        (greatest, {"scatter"}),
    ],
)
def test_a_call_that_no_kernel_computes_is_repeated_by_torch(
    change: Callable[[Tensor], Tensor], names: set[str]
) -> None:
    graph, recorded = found(of_layer(change))
    assert {one.name for one in only(Opaque, graph)} == names
    expected, fused = recorded.logits[0].double(), fuse(graph)
    with torch.inference_mode():
        got = evaluate(fused, recorded)
    assert float((got - expected).norm() / expected.norm()) < 1e-4
    # Kernels compute all else of the layer.
    assert {len(only(kind, fused)) for kind in (Attend, Gated)} == {3}


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.cumsum(1) / 9,
        lambda x: x / x.abs().max(),
        lambda x: x.roll(1, 1),
        lambda x: x * torch.arange(x.shape[1])[:, None].float(),
    ],
)
def test_a_call_whose_rows_depend_on_each_other_is_not_repeated(
    change: Callable[[Tensor], Tensor],
) -> None:
    with pytest.raises(UnreadableError, match="in Layer is not repeated: its rows depend"):
        found(of_layer(change))


def test_calls_to_repeat_are_found_once_for_all_models_of_a_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph, _ = found(tiny_model("gemma3n_text"))
    passes: list[AbstractSet[Site]] = []

    def counted(model: PreTrainedModel, shape: Any, opaque: Any, sites: Any, *rest: Any) -> Any:
        passes.append(frozenset(sites))
        return capture(model, shape, opaque, sites, *rest)

    monkeypatch.setattr(find, "capture", counted)
    again, _ = found(tiny_model("gemma3n_text", num_hidden_layers=3, hidden_size=64))
    # The passes without anything to repeat, with all of the calls, and with modules.
    assert len(passes) == 3
    assert not passes[0]
    assert passes[1] == passes[2]
    names = [[one.name for one in only(Opaque, one)] for one in (graph, again)]
    assert names[0] == names[1]


class Clipping(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).clamp(-1, 1)


class Normalised(nn.Module):
    """By one number that depends on the tokens."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x)
        return x / x.abs().max()


class Scaled(nn.Module):
    """Has a number for each column, or for each of four heads, with axes for others."""

    def __init__(self, inner: nn.Module, *, by_head: bool = False) -> None:
        super().__init__()
        self.inner = inner
        self.scale = torch.linspace(0.5, 2, 4 if by_head else 48).view(1, 1, -1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x)
        each = x.view(*x.shape[:2], self.scale.shape[-1], -1)
        return (self.scale[..., None] * each).flatten(2)


@pytest.mark.parametrize("by_head", [False, True])
def test_a_row_may_have_axes_of_one(by_head: bool) -> None:
    graph, recorded = found(rebuilt(tiny_model("llama"), "mlp", partial(Scaled, by_head=by_head)))
    assert not only(Opaque, graph)
    agree(fuse(graph), recorded)


def test_a_number_that_depends_on_the_tokens_is_no_factor() -> None:
    graph, _ = found(rebuilt(tiny_model("llama"), "mlp", Normalised))
    assert {one.name for one in only(Opaque, graph)} == {"Normalised"}


class Inverse(Normalised):
    def forward(self, x: Tensor) -> Tensor:
        return torch.div(torch.tensor(2.0), self.inner(x))


def test_a_number_divided_by_a_matrix_is_not_the_matrix_divided() -> None:
    graph, _ = found(rebuilt(tiny_model("llama"), "mlp", Inverse))
    assert {one.name for one in only(Opaque, graph)} == {"Inverse"}


class Asked(Mixing):
    """Is given more than a tensor."""

    def forward(self, x: Tensor, share: Tensor) -> Tensor:
        return super().forward(x * (1 - share))


class Asking(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.asked = Asked(inner)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.asked(x, torch.full((1,), 0.5))
        return result


class ByName(Mixing):
    """Is given a tensor by name, and something that is none."""

    def forward(self, share: float, *, x: Tensor | None = None, **others: str) -> Tensor:
        assert x is not None
        assert others == {"also": "this"}
        return super().forward(x * (1 - share))


class Telling(Asking):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__(inner)
        self.asked = ByName(inner)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.asked(0.5, x=x, also="this")
        return result


def test_a_module_is_given_what_it_was_given_beside_its_tensor() -> None:
    graph, recorded = found(rebuilt(tiny_model("llama"), "mlp", Telling))
    assert {one.name for one in only(Opaque, graph)} == {"ByName"}
    agree(graph, recorded)


def test_a_module_may_be_given_more_than_a_tensor() -> None:
    graph, recorded = found(rebuilt(tiny_model("llama"), "mlp", Asking))
    assert {one.name for one in only(Opaque, graph)} == {"Asked"}
    agree(graph, recorded)


def test_heads_that_lie_apart_are_rotated() -> None:
    """Of GPT-NeoX, each head's query, key and value are beside each other in one product."""
    graph, recorded = found(tiny_model("gpt_neox"))
    assert not only(Opaque, graph)
    agree(graph, recorded)


def test_rows_that_sample_are_picked_where_a_model_gives_logits_of_all() -> None:
    model = tiny_model("llama")
    forward = model.forward

    def of_all(*, logits_to_keep: Any, **given: Any) -> Any:
        return forward(**given)

    model.forward = of_all
    graph, recorded = found(model)
    assert graph.logits.per_sample
    head = graph.operations[-1]
    assert isinstance(head, Linear)
    assert isinstance(graph.operations[-2], Gather)
    with torch.inference_mode():
        got = evaluate(graph, recorded)
    wanted = recorded.logits[0, recorded.last_tokens].double()
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_scale_that_sets_in_with_a_position_is_in_the_tables_of_queries(
    dtype: torch.dtype,
) -> None:
    model = tiny_model("ministral3", dtype=dtype)
    model.set_attn_implementation(ATTENTION_NAME)
    shape = trace(type(model), model.config, model.dtype).shape
    first = model.config.rope_parameters["original_max_position_embeddings"]
    graph, _ = find_graph(model, shape, first + 2)
    attends = [one for one in graph.operations if isinstance(one, Attend)]
    rotations = [(one.query_rotation, one.key_rotation) for one in attends]
    assert len({id(query and query.cos) for query, _ in rotations}) == 1  # one table for all layers
    query, key = rotations[0]
    assert query is not None
    assert key is not None
    scale = (query.cos / key.cos).mean(1)
    sharper = 1 + 0.5 * math.log(2)
    wanted = torch.tensor([1.0] * first + [sharper] * 2)
    torch.testing.assert_close(scale, wanted, rtol=4e-3, atol=0)


def test_a_scale_by_more_than_a_position_is_no_rotation(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.ministral3 import modeling_ministral3

    def by_random(positions: torch.Tensor, *args: Any) -> torch.Tensor:
        return torch.rand(positions.shape)[:, None, :, None]

    monkeypatch.setattr(modeling_ministral3, "get_llama_4_attn_scale", by_random)
    model = tiny_model("ministral3")
    model.set_attn_implementation(ATTENTION_NAME)
    shape = trace(type(model), model.config, model.dtype).shape
    with pytest.raises(UnreadableError, match="depends on more than their positions"):
        find_graph(model, shape, 200)
