"""Operations whose kernels are wrong: torch computes these, and kernels all others."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from engine.api.client import Submission
from engine.api.config import EngineConfig
from engine.api.knobs import Knobs
from engine.api.sampling import SamplingParams
from engine.cache.storage import TokenStorage, UnitStorage
from engine.core.core import EngineCore
from engine.model.checks import gate
from engine.model.checks.gate import checked_forward
from engine.model.loading import loader, plan
from engine.model.program import build as building
from engine.model.program.find import find_graph
from engine.model.program.forward import ProgramForward
from engine.model.program.fuse import fuse
from engine.model.program.graph import Operation, View
from engine.model.program.operations.embed import Embed
from engine.model.program.operations.kerneled import ByTorch
from engine.model.program.operations.linear import Gated
from engine.model.program.operations.norm import Norm
from engine.model.program.pack import Packer
from engine.model.program.verify import MismatchError, Wrong
from engine.model.running.forward import make_forward
from engine.model.state.modules import find_states
from engine.model.tracing.latents import extract_expansions
from engine.serving.loading import LoadedModel
from tests.engine.model.attention.support import SMALL
from tests.engine.model.program.test_forward import config_for, shape_of
from tests.support.checkpoints import save_checkpoint
from tests.support.clock import VirtualClock
from tests.support.loading import load
from tests.support.native import kernels_or_skip
from tests.support.zoo import MAX_LEN, VOCAB_SIZE, tiny_model

native = kernels_or_skip()

# For each kind of operation, models that have some.
KINDS = {
    "embed": ("llama", "gpt2"),
    "norm": ("llama", "gpt2", "bamba"),
    "linear": ("qwen2", "starcoder2"),
    "gated": ("llama", "gemma2"),
    "elementwise": ("gemma2", "granite"),
    "attend": ("qwen2", "gemma2", "gpt_oss", "gemma4_text", "minicpm3", "nanochat"),
    "gather": ("mamba2",),
    "experts": ("gpt_oss", "qwen3_moe"),
    "convolve": ("lfm2", "bamba"),
    "recur": ("qwen3_next", "mamba2"),
    "perhead": ("deepseek_v2",),
    "beside": ("minicpm3",),
}
# Each kind in both types: they alternate where a kind has several models.
IN_TYPES = [
    (kind, name, dtype)
    for kind, names in KINDS.items()
    for name, dtype in zip(
        names * 2 if len(names) == 1 else names, cycle((torch.float32, torch.bfloat16))
    )
]


def operations_of(model: PreTrainedModel) -> list[Operation]:
    """The operations read from a model."""
    shape = shape_of(model)
    states = find_states(model, shape, 1, 0)
    expansions = extract_expansions(model) if shape.has_latents else None
    return fuse(find_graph(model, shape, MAX_LEN, states, expansions=expansions)[0]).operations


def of_kinds(operations: Sequence[Operation], kinds: Iterable[str]) -> tuple[Wrong, ...]:
    return tuple(
        Wrong(at, one.kind, one.out.width, "is set apart")
        for at, one in enumerate(operations)
        if one.kind in kinds
    )


def perturb(monkeypatch: pytest.MonkeyPatch, *kinds: str) -> None:
    """Let the kernel for the first operation of each of some kinds give half as much again, in each
    program that is made.
    """
    emit = building._Builder._emit

    def wrong(self: Any, operation: Any, *products: Any) -> None:
        emit(self, operation, *products)
        first = next(x for x in self._graph.operations if x.kind == operation.kind)
        if operation.kind in kinds and operation is first and not is_apart(operation):
            out = self._buffers.place(View(operation.out, 0, operation.out.width))
            self._program.elementwise(out, out, "none", None, "none", 1.5)

    monkeypatch.setattr(building._Builder, "_emit", wrong)


def is_apart(operation: Operation) -> bool:
    return isinstance(operation, ByTorch)


@pytest.mark.parametrize(("kind", "name", "dtype"), IN_TYPES)
def test_every_operation_of_a_kind_by_torch_gives_what_the_model_does(
    kind: str, name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In all situations of the gate's scripts: those of the small model are left to torch too."""
    model = tiny_model(name, dtype=dtype)
    wrong = of_kinds(operations_of(copy.deepcopy(model)), [kind])
    assert wrong
    play = gate.play

    def apart(small: PreTrainedModel, *args: Any, apart: Sequence[Wrong] = ()) -> Any:
        ours = of_kinds(operations_of(copy.deepcopy(small)), [kind])
        return play(small, *args[:4], *args[4:5], apart=ours)

    monkeypatch.setattr(gate, "play", apart)
    forward = checked_forward(model, config_for(model), shape_of(model), "cpu")
    assert isinstance(forward, ProgramForward)
    assert {one.name for one in forward.off_path} == {kind}
    assert sum(one.count for one in forward.off_path) == len(wrong)
    assert all(one.share is not None and 0 < one.share < 1 for one in forward.off_path)


PROMPTS = [[5, 9, 100, 31], list(range(3, 73)), [7] * 21]
NUM_OUTPUTS = 16


def served(loaded: LoadedModel) -> list[list[int]]:
    """Greedy tokens after `PROMPTS`, which a core of the loaded model makes, in chunks and side by
    side.
    """
    core = EngineCore(
        config=loaded.config,
        runner=loaded.runner,
        shape=loaded.shape,
        card=loaded.card,
        key=loaded.key,
        eos_token_ids=frozenset(),
        knobs=Knobs(max_num_seqs=4, max_num_batched_tokens=24),
        clock=VirtualClock(),
    )
    sampling = SamplingParams(temperature=0.0, max_tokens=NUM_OUTPUTS)
    for number, prompt in enumerate(PROMPTS):
        core.add_request(Submission(request_id=str(number)), prompt, sampling)
    given: list[list[int]] = [[] for _ in PROMPTS]
    while any(len(one) < NUM_OUTPUTS for one in given):
        for output in core.step():
            given[int(output.request_id)].extend(output.token_ids)
    return given


def own(model: PreTrainedModel) -> list[list[int]]:
    """The model's own output after `PROMPTS`."""
    return [
        model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=NUM_OUTPUTS,
            do_sample=False,
            pad_token_id=0,
        )[0, len(prompt) :].tolist()
        for prompt in PROMPTS
    ]


@pytest.mark.usefixtures("encodes_here", "short_scripts")
@pytest.mark.parametrize(
    ("kinds", "name"),
    [((kind,), names[0]) for kind, names in KINDS.items()] + [(("norm", "gated"), "llama")],
)
def test_a_wrong_kernel_costs_its_operation_alone(
    kinds: tuple[str, ...],
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = save_checkpoint(tmp_path, name)
    perturb(monkeypatch, *kinds)
    loaded = load(tmp_path)
    card = loaded.card
    assert card.attention.startswith("cpu")
    assert card.off_kernels == ""
    assert card.num_off_path == len(kinds)
    for one in card.off_path:
        assert one.name in kinds
        assert "differs from the model by" in one.reason
        assert one.share is not None
        assert 0 < one.share < 1
        assert f"the kernel for {one.name} differs from the model by" in caplog.text
    assert served(loaded) == own(model)
    loaded.close()


@pytest.mark.usefixtures("encodes_here", "short_scripts")
@pytest.mark.parametrize("kind", ["embed", "linear"])
def test_a_tied_table_is_right_on_both_sides(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a head, the embedding looks up the same memory; of an embedding, torch keeps the table
    beside the packed head, and the pool has so much less.
    """
    model = save_checkpoint(tmp_path, "llama", tie_word_embeddings=True)
    table = model.get_input_embeddings().weight.nbytes
    emit = building._Builder._emit

    def wrong(self: Any, operation: Any, *products: Any) -> None:
        emit(self, operation, *products)
        is_it = isinstance(operation, Embed) or operation is self._graph.operations[-1]
        if operation.kind == kind and is_it and not is_apart(operation):
            out = self._buffers.place(View(operation.out, 0, operation.out.width))
            self._program.elementwise(out, out, "none", None, "none", 1.5)

    monkeypatch.setattr(building._Builder, "_emit", wrong)
    loaded = load(tmp_path)
    forward = loaded.runner.forward  # type: ignore[attr-defined]
    assert [(one.name, one.columns) for one in loaded.card.off_path] == [
        (kind, 48 if kind == "embed" else VOCAB_SIZE)
    ]
    assert forward.kept_bytes == (table if kind == "embed" else 0)
    assert loaded.shape.saved_bytes == -forward.kept_bytes
    head = forward._stages[-1].operation
    embedded = forward._stages[0].operation.definition
    if kind == "linear":
        assert embedded.table.data_ptr() == head.operation.weights[0].data_ptr()
    assert served(loaded) == own(model)
    loaded.close()


@pytest.mark.usefixtures("encodes_here", "short_scripts")
def test_the_pool_is_planned_anew_beside_what_torch_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save_checkpoint(tmp_path, "llama", tie_word_embeddings=True)
    table = model.get_input_embeddings().weight.nbytes
    perturb(monkeypatch, "embed")
    make = plan.plan_memory
    served_bytes: list[int] = []

    def planned(request: Any, needs: Any, *rest: Any, **others: Any) -> EngineConfig:
        served_bytes.append(needs.served_bytes)
        found = make(request, needs, *rest, **others)
        return replace(found, num_blocks=20) if len(served_bytes) > 1 else found

    monkeypatch.setattr(plan, "plan_memory", planned)
    loaded = load(tmp_path)
    first, last = served_bytes
    assert last == first + table
    assert loaded.config.num_blocks == 20
    loaded.close()


@pytest.mark.usefixtures("encodes_here", "short_scripts")
def test_where_torch_disagrees_too_the_whole_model_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = save_checkpoint(tmp_path)
    compute = Norm.compute
    perturb(monkeypatch, "norm")
    monkeypatch.setattr(Norm, "compute", lambda self, of: 2 * compute(self, of))
    loaded = load(tmp_path)
    assert loaded.card.attention == "torch"
    assert loaded.card.off_path == ()
    assert loaded.card.off_kernels.startswith("norm by torch differs from the model by")
    assert "our kernels are not used for" in caplog.text
    assert served(loaded) == own(model)
    loaded.close()


@pytest.mark.usefixtures("encodes_here", "short_scripts")
def test_a_quantized_model_keeps_its_codes_but_for_the_wrong_operation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(tmp_path)
    whole = load(tmp_path, quantize="int8")
    perturb(monkeypatch, "gated")
    loaded = load(tmp_path, quantize="int8")
    assert (loaded.card.quantize, loaded.card.num_off_path) == ("int8", 1)
    forward = loaded.runner.forward  # type: ignore[attr-defined]
    # Gate and up of one layer stay numbers of 32 bits.
    assert forward.kept_bytes == 2 * 48 * 80 * 4
    assert loaded.shape.saved_bytes == whole.shape.saved_bytes - forward.kept_bytes
    assert loaded.card.loss is not None
    assert loaded.card.loss.equal_best > 0.8
    whole.close()
    loaded.close()


@pytest.mark.usefixtures("encodes_here", "short_scripts")
def test_a_kernel_that_does_not_take_its_weights_costs_its_operation_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save_checkpoint(tmp_path)
    packed = Gated.pack

    def short(self: Gated, packer: Packer) -> Any:
        (product,) = packed(self, packer)
        return (replace(product, weight=product.weight[:-1]),)

    monkeypatch.setattr(Gated, "pack", short)
    loaded = load(tmp_path)
    (one,) = loaded.card.off_path
    assert (one.name, one.count) == ("gated", 3)
    assert one.reason.startswith("does not take what the model gives it: weight has")
    assert served(loaded) == own(model)
    loaded.close()


@pytest.mark.usefixtures("encodes_here", "short_scripts")
def test_a_model_whose_kernel_was_wrong_is_gone_when_it_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(tmp_path)
    perturb(monkeypatch, "linear")
    spent: list[weakref.ref[PreTrainedModel]] = []
    read = loader.load_weights

    def counted(*args: Any) -> PreTrainedModel:
        assert not any(one() for one in spent)
        model = read(*args)
        spent.append(weakref.ref(model))
        return model

    monkeypatch.setattr(loader, "load_weights", counted)
    loaded = load(tmp_path)
    assert len(spent) == 2
    loaded.close()
    gc.collect()
    assert [one() for one in spent] == [None, None]


def test_operations_of_another_graph_are_not_set_apart() -> None:
    model = tiny_model("llama")
    other = Wrong(0, "linear", 48, "differs")
    with pytest.raises(MismatchError, match="linear of 48 columns is not where") as caught:
        make_forward(model, config_for(model), shape_of(model), "cpu", apart=[other])
    assert caught.value.wrong == ()


def test_a_module_that_stays_as_it_is_counts_as_off_the_fast_path() -> None:
    model = tiny_model("llama")

    class Clipped(type(model.model.layers[0].mlp)):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = super().forward(x).clamp(-2, 2)
            return result

    for layer in model.model.layers[:2]:
        layer.mlp.__class__ = Clipped
    forward = checked_forward(model, config_for(model), shape_of(model), "cpu")
    (one,) = forward.off_path
    assert (one.name, one.columns, one.count) == ("Clipped", 48, 2)
    assert one.reason == "no kernel of ours computes it"


# What torch repeats of each architecture.
REPEATED = {
    "bailing_hybrid": {"BailingHybridDeltaAttention"},
    "beam": {"exp"},
    "ctrl": {"add"},
    "dbrx": {"clamp", "DbrxExperts"},
    "gemma3n_text": {
        *("stack", "contiguous", "mul", "add", "setitem", "mean"),
        "Gemma3nTextMLP",
    },
    "kimi_linear": {"KimiLinearDeltaAttention"},
    "longcat_flash": {"cat", "LongcatFlashExperts"},
    "minimax": {"MiniMaxLightningAttention"},
    "zamba": {"concatenate", "ZambaMambaMixer"},
    "zamba2": {"concatenate"},
    "zaya": {"ZayaCCAProjection", "ZayaQKNorm", "ZayaResidualScaling", "ZayaSparseMoeBlock"},
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    # Rounding to bfloat16 changes the logits of this small Zamba by 0.4, by torch alone too.
    [(name, torch.float32) for name in REPEATED]
    + [(name, torch.bfloat16) for name in REPEATED if name != "zamba"],
)
def test_what_no_kernel_computes_is_repeated_between_kernels(name: str, dtype: torch.dtype) -> None:
    """The gate compares both this model and a smaller one, in all situations."""
    model = tiny_model(name, dtype=dtype)
    forward = checked_forward(model, config_for(model), shape_of(model), "cpu")
    assert isinstance(forward, ProgramForward)
    assert {one.name for one in forward.off_path} == REPEATED[name]
    assert all(one.share is not None and 0 < one.share < 1 for one in forward.off_path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("head_dim", "value_dim"), [(8, 8), (40, 24)])
def test_units_are_gathered_as_they_were_written(
    head_dim: int, value_dim: int, dtype: torch.dtype
) -> None:
    shape = replace(
        SMALL, num_kv_heads=3, head_dim=head_dim, value_dim=value_dim, dtype=dtype, num_layers=2
    )
    storages = UnitStorage(shape), TokenStorage(shape)
    generator = torch.Generator().manual_seed(0)
    slots = torch.randperm(64, generator=generator)[:40]
    key, value = (
        torch.randn(40, 3, size, generator=generator).to(dtype) for size in (head_dim, value_dim)
    )
    for storage in storages:
        storage.clear_blocks(range(4))
        storage.write(1, slots, key, value)
    blocks = torch.tensor([2, 0, 3])
    for ours, theirs in zip(*(one.gather(1, blocks) for one in storages), strict=True):
        assert torch.equal(ours, theirs)
