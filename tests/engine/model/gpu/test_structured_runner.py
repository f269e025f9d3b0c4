"""Structures on a runner of depth 2, under Triton's interpreter: what it gives is what one step
after the other gives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from engine.api.client import Submission
from engine.api.config import EngineConfig
from engine.api.knobs import Knobs
from engine.api.lifecycle import FinishReason
from engine.api.sampling import SamplingParams
from engine.api.status import ModelCard
from engine.batch.plan import NOT_FOLLOWED, End, NewSequence, Row, StepPlan
from engine.core.core import EngineCore
from engine.model.gpu.forward import GpuForward
from engine.model.gpu.runner import GpuRunner
from engine.model.gpu.sampler import DeviceSampler
from engine.model.gpu.start import runner_with_graphs
from engine.model.gpu.stream import HostStream, Stream
from engine.model.running.forward import make_forward
from engine.model.running.runner import TorchRunner
from engine.model.step.masks import Allowed
from engine.model.tracing.trace import trace
from tests.support.clock import VirtualClock
from tests.support.delaying_stream import DelayingStream
from tests.support.structures import ENDS, check, grammar, ids_of, text_of
from tests.support.zoo import MAX_LEN, tiny_model

CONFIG = EngineConfig(
    num_blocks=12, max_model_len=MAX_LEN, max_num_seqs=4, max_num_batched_tokens=48
)
CARD = ModelCard("tiny", "Tiny", 0, "float32", "cpu", "triton", MAX_LEN, 0, 0)
MODEL = tiny_model("llama", num_hidden_layers=2)
SHAPE = trace(type(MODEL), MODEL.config, torch.float32).shape
GREEDY = SamplingParams(temperature=0)
HARD = {"regex": r"(\p{L}{0,1000}\w{0,1000}){0,1000}"}
ASKED: dict[str, tuple[SamplingParams, dict[str, Any] | None]] = {
    "number": (SamplingParams(temperature=0, min_tokens=9), {"regex": "[0-9]{8,20}x"}),
    "free": (SamplingParams(temperature=1.0, top_p=0.9, seed=3, max_tokens=16), None),
    "choice": (SamplingParams(temperature=1.2, seed=4, logprobs=2), {"choice": ["yes", "no"]}),
    "schema": (
        SamplingParams(temperature=1.0, seed=8, repetition_penalty=1.2, ignore_eos=True),
        {"json_schema": {"type": "array", "items": {"enum": [1, "a"]}, "maxItems": 6}},
    ),
    "penalised": (SamplingParams(temperature=0, frequency_penalty=0.8, max_tokens=12), None),
    "biased": (
        SamplingParams(temperature=0.9, seed=5, top_k=3, logit_bias=((ord("b"), 4.0),)),
        {"regex": "[a-c]{12}"},
    ),
}


def gpu_runner(stream: Stream) -> GpuRunner:
    model = tiny_model("llama", num_hidden_layers=2)
    forward = make_forward(model, CONFIG, SHAPE, "triton")
    assert isinstance(forward, GpuForward)
    return runner_with_graphs(forward, CONFIG, SHAPE, stream)


def torch_runner() -> TorchRunner:
    model = tiny_model("llama", num_hidden_layers=2)
    return TorchRunner(make_forward(model, CONFIG, SHAPE, "torch"), CONFIG, SHAPE)


def serve(
    runner: GpuRunner | TorchRunner,
) -> tuple[dict[str, list[int]], dict[str, End], EngineCore]:
    """Requests through a pool that is too small for them."""
    core = EngineCore(
        config=CONFIG,
        runner=runner,
        shape=SHAPE,
        card=CARD,
        key="tiny",
        eos_token_ids=frozenset(ENDS),
        knobs=Knobs(max_num_seqs=4, max_num_batched_tokens=24, watermark=0.0),
        clock=VirtualClock(),
    )
    tokens: dict[str, list[int]] = {}
    ends: dict[str, End] = {}
    for number, name in enumerate(ASKED):
        sampling, stated = ASKED[name]
        prompt = [int(t) for t in np.random.default_rng(number).integers(4, 120, 38)]
        tokens[name] = []
        made = None if stated is None else grammar(stated)
        params = sampling.override({"structure": stated})
        core.add_request(Submission(request_id=name), prompt, params, None, made)
    for _ in range(400):
        for output in core.step():
            tokens[output.request_id].extend(output.token_ids)
            if output.end is not None:
                ends[output.request_id] = output.end
        core.check()
        if not core.num_unfinished and core.idle:
            break
    assert not core.num_unfinished
    return tokens, ends, core


@pytest.fixture(scope="module")
def expected() -> dict[str, list[int]]:
    tokens, ends, core = serve(torch_runner())
    for name, (_, stated) in ASKED.items():
        if stated is not None:
            assert ends[name].reason is FinishReason.STOP
            check(stated, text_of(tokens[name]))
    assert core.snapshot().totals.preemptions > 0
    return tokens


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(HostStream, id="at once", marks=pytest.mark.long),
        pytest.param(DelayingStream, id="late", marks=pytest.mark.long),
        pytest.param(lambda: DelayingStream(lag=2), id="behind", marks=pytest.mark.long),
    ],
)
def test_it_gives_what_one_step_after_the_other_gives(
    stream: Callable[[], Stream], expected: dict[str, list[int]]
) -> None:
    tokens, _, core = serve(gpu_runner(stream()))
    assert tokens == expected
    assert core.snapshot().totals.preemptions > 0
    records = core.records.since(0)
    assert sum(record.structured_rows for record in records) >= sum(
        len(tokens[name]) for name, (_, stated) in ASKED.items() if stated is not None
    )
    assert all(record.times.mask > 0 for record in records if record.structured_rows)
    assert not any(record.times.mask for record in records if not record.structured_rows)


def start(runner: GpuRunner, *some: NewSequence) -> list[object]:
    """Two steps of all sequences, the second one before the first one's tokens are known."""
    prompts = tuple(Row(one.seq, 0, len(one.token_ids), (one.seq,), True, True) for one in some)
    decodes = tuple(Row(one.seq, len(one.token_ids), 1, (), True, False) for one in some)
    return [
        runner.start_step(StepPlan(1, prompts, new=some)),
        runner.start_step(StepPlan(2, decodes)),
    ]


def new(seq: int, stated: object = None, output: list[int] | None = None) -> NewSequence:
    made = None if stated is None else grammar(stated)
    ids = (9, 10, 11, *(output or ()))
    return NewSequence(seq, ids, 3, GREEDY, 0, ENDS, (), made)


def test_the_next_step_is_started_before_its_masks_can_be_known() -> None:
    stream = DelayingStream()
    runner = gpu_runner(stream)
    started: list[int] = []
    handles = start(runner, new(0, {"regex": "ab"}), new(1))
    started.append(stream._num_enqueued)
    first = runner.result(handles[0])
    started.append(stream._num_enqueued)
    second = runner.result(handles[1])
    # Only the tokens of the second step's structured row are left for when the first are known.
    assert started[1] == started[0] + 1
    assert (first.token_ids[0], second.token_ids[0]) == (ord("a"), ord("b"))
    assert first.times.mask > 0


def test_a_step_without_structures_is_one_piece_of_work() -> None:
    stream = DelayingStream()
    runner = gpu_runner(stream)
    before = stream._num_enqueued
    for handle in start(runner, new(0), new(1)):
        result = runner.result(handle)
        assert result.times.mask == 0.0
    assert stream._num_enqueued == before + 2


def test_a_structure_that_cannot_be_followed_ends_its_row_alone() -> None:
    runner = gpu_runner(DelayingStream())
    lost, sound = new(0, {"regex": "ab"}, ids_of("x")), new(1, {"regex": "ab"})
    found = [runner.result(handle).token_ids for handle in start(runner, lost, sound)]
    assert found == [(NOT_FOLLOWED, ord("a")), (NOT_FOLLOWED, ord("b"))]


def test_a_place_that_another_sequence_has_by_now_is_left_alone() -> None:
    """The token of a sequence that ended while its step ran is not the next one's."""
    runner = gpu_runner(DelayingStream())
    first, second = new(0, {"regex": "ab"}), new(1, {"regex": "xy"})
    handles = [
        runner.start_step(StepPlan(1, (Row(0, 0, 3, (0,), True, True),), new=(first,))),
        runner.start_step(
            StepPlan(2, (Row(1, 0, 3, (1,), True, True),), new=(second,), released=(0,))
        ),
    ]
    found = [runner.result(handle).token_ids for handle in handles]
    last = runner.start_step(StepPlan(3, (Row(1, 3, 1, (), True, False),)))
    assert [*found, runner.result(last).token_ids] == [(ord("a"),), (ord("x"),), (ord("y"),)]


def test_what_is_raised_for_a_step_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = gpu_runner(DelayingStream())
    handles = start(runner, new(0, {"regex": "ab"}))

    def fail(*_: object) -> None:
        raise RuntimeError("no masks")

    monkeypatch.setattr(runner._sampler.masks, "collect", fail)
    assert runner.result(handles[0]).token_ids == (ord("a"),)
    with pytest.raises(RuntimeError, match="no masks"):
        runner.result(handles[1])


def test_a_mask_is_exact_at_its_edges() -> None:
    """Of the first, the last and the only tokens, in a vocabulary that ends within a word."""
    size = 300
    sampler = DeviceSampler(max_num_seqs=3, vocab_size=size, device="cpu")
    logits = torch.randn(3, size, generator=torch.Generator().manual_seed(0))
    index = np.array([2, 0, 1])
    allowed_tokens = [[0, 31], [32, 299], [150]]
    bits = np.zeros((3, -(-size // 32)), np.uint32)
    for row, tokens in enumerate(allowed_tokens):
        for token in tokens:
            bits[row, token // 32] |= np.uint32(1 << token % 32)
    made = grammar({"regex": "a"})
    for at in range(3):
        sampler.add(at, NewSequence(at, (1,), 1, GREEDY, 0, (), (), made))
    sampler.bind(index, Allowed([0, 1, 2], bits.view(np.int32), [], 0.0))
    words = sampler.pack(index, np.array([1, 1, 1]))
    bound = sampler.part(words)
    assert (words == -1).all()
    assert bound is not None
    chosen = torch.full((3,), -9, dtype=torch.int32)
    latest = torch.zeros(3, dtype=torch.int32)
    sampler.launch(logits, torch.from_numpy(bound), chosen, latest, masked=True)
    wanted = [
        max(tokens, key=row.tolist().__getitem__)
        for tokens, row in zip(allowed_tokens, logits, strict=True)
    ]
    assert chosen.tolist() == wanted
    assert latest[index].tolist() == wanted
