"""Each situation that the gate tries finds what goes wrong in it: one thing is broken at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, Llama4ForCausalLM, PreTrainedModel

from engine.api.config import EngineConfig
from engine.api.errors import ModelError
from engine.model.attention.base import StepContext
from engine.model.attention.batch import Batch, PackedRows, PackedStep
from engine.model.attention.params import AttentionParams
from engine.model.attention.torch_backend import TorchAttention
from engine.model.checks import gate
from engine.model.checks.gate import checked_forward
from engine.model.checks.script import long_script, short_script
from engine.model.checks.selftest import Finding, play
from engine.model.program.verify import MismatchError
from engine.model.running.forward import Forward
from engine.model.running.runner import TorchRunner
from engine.model.state import modules
from engine.model.state.groups import Group, groups_of
from engine.model.state.probe import Probed
from engine.model.state.slots import StateSlots
from engine.model.tracing.trace import trace
from tests.support.zoo import tiny_model

CONFIG = EngineConfig(num_blocks=16, max_model_len=256)

FIRST = "in the first 5 tokens"
WHOLE = "in a prompt of 72 tokens at once, while 5 are right"
CUT = "in a prompt that is cut in chunks, while a whole one is right"
DECODED = "in tokens that are decoded one by one"
BESIDE = "beside other sequences, while it is right alone"
PREFIX = "in going on from a prefix of another sequence"
PLACE = "in the place of a sequence that has ended"


def refusal(model: PreTrainedModel) -> str:
    shape = trace(type(model), model.config, model.dtype).shape
    with pytest.raises(ModelError) as caught:
        checked_forward(model, CONFIG, shape, "torch")
    return caught.value.message


def attending(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    class Changed(TorchAttention):
        def attend(
            self, query: Tensor, layer: int, context: StepContext, params: AttentionParams
        ) -> Tensor:
            return super().attend(query, layer, *change(context, params))

    monkeypatch.setattr("engine.model.running.forward.TorchAttention", Changed)


def test_what_is_wrong_at_once_is_found_in_the_first_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attending(monkeypatch, lambda context, params: (context, replace(params, scaling=1.0)))
    assert refusal(tiny_model("llama")).endswith(FIRST)


@pytest.mark.parametrize("off", [-1, 1])
def test_a_window_that_is_off_by_one(off: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def change(context: StepContext, params: AttentionParams) -> Any:
        return context, replace(params, window=params.window and params.window + off)

    attending(monkeypatch, change)
    # One of 5 tokens ends in the first chunk already.
    assert refusal(tiny_model("mistral")).endswith(WHOLE)


def test_attention_in_chunks_of_the_models_own() -> None:
    """Llama 4 attends in chunks of 8,192 tokens, which nothing that reaches attention tells of."""
    config = AutoConfig.for_model(
        "llama4_text",
        hidden_size=48,
        intermediate_size=32,
        intermediate_size_mlp=32,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=12,
        vocab_size=128,
        num_local_experts=2,
        moe_layers=[],
        pad_token_id=None,
    )
    assert config.attention_chunk_size == 8192
    model = Llama4ForCausalLM._from_config(config, attn_implementation="eager").eval()
    assert refusal(model).endswith(WHOLE)


def packing(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    pack = Batch.pack
    monkeypatch.setattr(Batch, "pack", lambda self, rows: change(pack(self, rows)))


@pytest.mark.parametrize(("single", "where"), [(False, CUT), (True, DECODED)])
def test_a_position_that_starts_anew(
    single: bool, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(step: PackedStep) -> PackedStep:
        starts = np.where((step.counts == 1) == single, step.starts, 0)
        shift = np.repeat(starts, step.counts)
        return replace(step, position_ids=step.position_ids - shift)

    packing(monkeypatch, change)
    assert refusal(tiny_model("llama")).endswith(where)


def test_a_chunk_that_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(context: StepContext, params: AttentionParams) -> Any:
        longest = int(context.counts.max())
        goes_on = longest > 1 and bool(context.starts.any())
        return context, replace(params, window=longest) if goes_on else params

    attending(monkeypatch, change)
    assert refusal(tiny_model("llama")).endswith(CUT)


def test_logits_in_the_order_of_another_row(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Batch.rows

    def wrong(self: Batch, planned: Any) -> PackedRows:
        packed = rows(self, planned)
        return replace(packed, last_tokens=np.sort(packed.last_tokens))

    monkeypatch.setattr(Batch, "rows", wrong)
    assert refusal(tiny_model("llama")).endswith(BESIDE)


def test_keys_of_another_row(monkeypatch: pytest.MonkeyPatch) -> None:
    packing(monkeypatch, lambda step: replace(step, block_tables=step.block_tables[::-1]))
    assert refusal(tiny_model("llama")).endswith(BESIDE)


def test_logits_that_depend_on_the_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(context: StepContext, params: AttentionParams) -> Any:
        return context, replace(params, scaling=params.scaling * (1 + len(context.counts) / 50))

    monkeypatch.setattr(gate, "_SMALL_TOLERANCE", 0.1)
    attending(monkeypatch, change)
    assert refusal(tiny_model("llama")).endswith(BESIDE)


def test_blocks_of_a_prefix_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    add = Batch.add

    def wrong(self: Batch, new: Any) -> int:
        return add(self, replace(new, block_ids=new.block_ids[::-1]))

    monkeypatch.setattr(Batch, "add", wrong)
    # Attention over all tokens does not depend on their order; within a window it does.
    assert refusal(tiny_model("mistral")).endswith(PREFIX)


@pytest.mark.parametrize("name", ["lfm2", "qwen3_next", "mamba2"])
def test_a_state_that_is_not_copied(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StateSlots, "copy", lambda self, pairs: None)
    assert refusal(tiny_model(name)).endswith(PREFIX)


def test_a_state_that_is_saved_before_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    start, copy = TorchRunner._start, TorchRunner._copy_states

    def early(self: TorchRunner, plan: Any) -> Any:
        for seq, snapshot in plan.saves:
            if seq in self._batch._index:
                pair = self._batch.index_of(seq), self._snapshot(snapshot)
                copy(self, [pair])
        return start(self, replace(plan, saves=()))

    monkeypatch.setattr(TorchRunner, "_start", early)
    assert refusal(tiny_model("lfm2")).endswith(PREFIX)


def test_a_snapshot_in_the_place_of_a_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TorchRunner, "_snapshot", lambda self, snapshot: snapshot)
    assert refusal(tiny_model("lfm2")).endswith(BESIDE)


@pytest.mark.parametrize("name", ["lfm2", "minimax"])
def test_a_state_of_another_row(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(index: Any, *rest: Any) -> list[Group]:
        return groups_of(np.roll(index, 1), *rest)

    monkeypatch.setattr(modules, "groups_of", wrong)
    assert refusal(tiny_model(name)).endswith(BESIDE)


def test_a_state_that_is_dropped_between_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(index: Any, starts: Any, counts: Any, device: torch.device) -> list[Group]:
        return groups_of(index, np.where(counts > 1, 0, starts), counts, device)

    monkeypatch.setattr(modules, "groups_of", wrong)
    assert refusal(tiny_model("lfm2")).endswith(CUT)


def test_a_state_that_the_next_sequence_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    used: set[int] = set()
    probe = modules.probe

    def first(*args: Any) -> Probed:
        used.clear()
        return probe(*args)

    def wrong(index: Any, starts: Any, counts: Any, device: torch.device) -> list[Group]:
        had = np.isin(index, list(used))
        used.update(index.tolist())
        return groups_of(index, np.where(had, 1, starts), counts, device)

    monkeypatch.setattr(modules, "probe", first)
    monkeypatch.setattr(modules, "groups_of", wrong)
    assert refusal(tiny_model("lfm2")).endswith(PLACE)


class Once:
    """Plays scripts, and finds what is not there in some of the plays."""

    def __init__(self, *wrong: bool) -> None:
        self._wrong = list(wrong)

    def __call__(self, *args: Any, **apart: Any) -> tuple[Forward, list[Finding]]:
        forward, findings = play(*args, **apart)
        if self._wrong.pop(0):
            findings[-1] = Finding("somewhere", 0.5)
        return forward, findings


def test_two_experts_that_are_as_good_as_equal_refuse_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny_model("qwen3_moe")
    shape = trace(type(model), model.config, model.dtype).shape
    monkeypatch.setattr(gate, "play", Once(True, False, False))
    checked_forward(model, CONFIG, shape, "torch")


def test_what_torch_alone_computes_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("stablelm")
    shape = trace(type(model), model.config, model.dtype).shape
    monkeypatch.setattr(gate, "play", Once(True, True, False))
    with pytest.raises(MismatchError, match=r"by cpu: .* somewhere; torch computes it right"):
        checked_forward(model, CONFIG, shape, "cpu")


def test_what_is_wrong_in_the_loaded_weights_is_left_to_torch_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny_model("stablelm")
    shape = trace(type(model), model.config, model.dtype).shape
    monkeypatch.setattr(gate, "play", Once(False, True))
    with pytest.raises(MismatchError, match="StableLmForCausalLM by cpu: with paged"):
        checked_forward(model, CONFIG, shape, "cpu")


def test_the_scripts_are_plans_as_the_engine_makes_them() -> None:
    for script in (long_script(128, 16, keeps_states=True), short_script(128, 16)):
        batch = Batch(script.envelope(CONFIG))
        orders, tables = set(), {}
        for plan, _ in script.steps:
            counts = [row.count for row in plan.rows]
            assert counts == sorted(counts, key=lambda count: count > 1), "decodes first"
            for seq in plan.released:
                batch.release(seq)
                del tables[seq]
            for new in plan.new:
                batch.add(new)
                tables[new.seq] = set(new.block_ids)
            for row in plan.rows:
                held = set().union(*tables.values())
                assert held.isdisjoint(row.new_blocks), "a block is given twice"
                tables[row.seq].update(row.new_blocks)
            batch.extend(plan.rows)
            batch.pack(plan.rows)
            orders.add(tuple(row.seq for row in plan.rows if row.count == 1))
        assert len(orders) > 1
