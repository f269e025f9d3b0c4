"""A runner of depth 2 under Triton's interpreter: what it gives is what one step after the other
gives.
"""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

pytest.importorskip("triton")

from engine.api.client import Submission
from engine.api.config import EngineConfig
from engine.api.errors import DeviceLostError
from engine.api.knobs import Knobs
from engine.api.sampling import SamplingParams
from engine.api.status import ModelCard
from engine.batch.plan import NewSequence, Row, StepPlan, TokenOutput
from engine.core.core import EngineCore
from engine.model.gpu.forward import GpuForward
from engine.model.gpu.inputs import StepSize
from engine.model.gpu.runner import GpuRunner
from engine.model.gpu.start import runner_with_graphs
from engine.model.gpu.stream import HostStream, Stream
from engine.model.running.forward import make_forward
from engine.model.running.runner import TorchRunner
from engine.model.tracing.trace import trace
from tests.support.clock import VirtualClock
from tests.support.delaying_stream import DelayingStream
from tests.support.zoo import MAX_LEN, tiny_model

CONFIG = EngineConfig(
    num_blocks=24, max_model_len=MAX_LEN, max_num_seqs=4, max_num_batched_tokens=48
)
CARD = ModelCard("tiny", "Tiny", 0, "float32", "cpu", "triton", MAX_LEN, 0, 0)


def model() -> PreTrainedModel:
    """Two layers: the last one differs from those before it."""
    return tiny_model("llama", num_hidden_layers=2)


SHAPE = trace(type(model()), model().config, torch.float32).shape


def gpu_runner(stream: Stream) -> GpuRunner:
    forward = make_forward(model(), CONFIG, SHAPE, "triton")
    assert isinstance(forward, GpuForward)
    return runner_with_graphs(forward, CONFIG, SHAPE, stream)


def torch_runner() -> TorchRunner:
    return TorchRunner(make_forward(model(), CONFIG, SHAPE, "torch"), CONFIG, SHAPE)


SAMPLINGS = (
    SamplingParams(temperature=0, max_tokens=12),
    SamplingParams(temperature=1.1, top_p=0.9, max_tokens=9, seed=3),
    SamplingParams(temperature=0.8, top_k=20, frequency_penalty=0.7, max_tokens=14, seed=4),
    SamplingParams(temperature=0, logprobs=3, max_tokens=7),
    SamplingParams(temperature=0, repetition_penalty=1.3, max_tokens=10, prompt_logprobs=0),
    SamplingParams(temperature=1.0, min_p=0.02, logit_bias=((5, 4.0),), max_tokens=5, seed=5),
    SamplingParams(temperature=0, min_tokens=4, stop_token_ids=(1, 2, 3), max_tokens=8),
    SamplingParams(max_tokens=0, prompt_logprobs=2),
)
PROMPTS = tuple(
    tuple(int(token) for token in np.random.default_rng(seed).integers(4, 120, length))
    for seed, length in enumerate((30, 5, 41, 1, 17, 30, 60, 70))
)


def serve(runner: GpuRunner | TorchRunner) -> dict[str, list[TokenOutput]]:
    """Requests of all kinds through a pool that is too small for them; one of them is aborted."""
    core = EngineCore(
        config=CONFIG,
        runner=runner,
        shape=SHAPE,
        card=CARD,
        key="tiny",
        eos_token_ids=frozenset({1}),
        knobs=Knobs(max_num_seqs=4, max_num_batched_tokens=24, watermark=0.0),
        clock=VirtualClock(),
    )
    outputs: dict[str, list[TokenOutput]] = {}
    for number, (prompt, sampling) in enumerate(zip(PROMPTS, SAMPLINGS, strict=True)):
        core.add_request(Submission(request_id=f"r{number}"), prompt, sampling)
        outputs[f"r{number}"] = []
    core.add_request(Submission(request_id="again", fork_of="r0"), PROMPTS[0], SAMPLINGS[1])
    outputs["again"] = []
    for step in range(400):
        if step == 9:
            core.abort("r2")
        for output in core.step():
            outputs[output.request_id].append(output)
        core.check()
        if not core.num_unfinished and core.idle:
            break
    assert not core.num_unfinished
    assert not any(record.error for record in core.records.since(0))
    return outputs


def tokens_of(outputs: dict[str, list[TokenOutput]]) -> dict[str, list[int]]:
    return {name: [t for one in some for t in one.token_ids] for name, some in outputs.items()}


@pytest.fixture(scope="module")
def expected() -> dict[str, list[TokenOutput]]:
    return serve(torch_runner())


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(HostStream, id="at once", marks=pytest.mark.long),
        pytest.param(DelayingStream, id="late"),
        pytest.param(lambda: DelayingStream(lag=2), id="behind", marks=pytest.mark.long),
    ],
)
def test_it_gives_what_one_step_after_the_other_gives(
    stream: Callable[[], Stream], expected: dict[str, list[TokenOutput]]
) -> None:
    outputs = serve(gpu_runner(stream()))
    found, wanted = tokens_of(outputs), tokens_of(expected)
    aborted = found.pop("r2"), wanted.pop("r2")
    assert found == wanted
    shorter = min(map(len, aborted))
    assert aborted[0][:shorter] == aborted[1][:shorter]
    for name in found:
        ends = [some[-1].end for some in (outputs[name], expected[name])]
        assert ends[0] is not None
        assert ends[1] is not None
        assert ends[0].reason is ends[1].reason
    chosen = [[one.logprobs for one in some["r3"] if one.logprobs] for some in (outputs, expected)]
    assert len(chosen[0]) == 7
    for mine, theirs in zip(*chosen, strict=True):
        assert mine[0].rank == theirs[0].rank
        assert [token for token, _ in mine[0].top] == [token for token, _ in theirs[0].top]
        assert mine[0].logprob == pytest.approx(theirs[0].logprob, abs=1e-4)
    prompts = [
        [one for output in (*some["r4"], *some["r7"]) if output.prompt for one in output.prompt]
        for some in (outputs, expected)
    ]
    assert len(prompts[0]) == 16 + 69
    for (token, told), (other, wanted_one) in zip(*prompts, strict=True):
        assert token == other
        assert told.logprob == pytest.approx(wanted_one.logprob, abs=1e-4)
        assert told.rank == wanted_one.rank
        assert [one for one, _ in told.top] == [one for one, _ in wanted_one.top]


def test_plans_overlap() -> None:
    """The next plan is taken before the tokens of the one before are known."""
    stream = DelayingStream()
    runner = gpu_runner(stream)
    assert runner.depth == 2
    new = NewSequence(0, (5, 6, 7), 3, SamplingParams(temperature=0), 0, (), ())
    first = runner.start_step(StepPlan(1, (Row(0, 0, 3, (2,), True, True),), new=(new,)))
    done = stream._num_done
    second = runner.start_step(StepPlan(2, (Row(0, 3, 1, (), True, False),)))
    assert stream._num_done == done
    tokens = [runner.result(handle).token_ids[0] for handle in (first, second)]
    lockstep = torch_runner()
    wanted = []
    for step, row in enumerate((Row(0, 0, 3, (2,), True, True), Row(0, 3, 1, (), True, False)), 1):
        plan = StepPlan(step, (row,), new=(new,) if step == 1 else ())
        wanted.append(lockstep.result(lockstep.start_step(plan)).token_ids[0])
    assert tokens == wanted


def test_a_module_that_cannot_be_captured_leaves_steps_without_graphs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class NoCapture(HostStream):
        def capture(self, work: Callable[[], None]) -> Callable[[], None]:
            raise RuntimeError("operation not permitted when stream is capturing")

    with caplog.at_level(logging.WARNING):
        runner = gpu_runner(NoCapture())
    assert "steps run without CUDA graphs: RuntimeError: operation not permitted" in caplog.text
    new = NewSequence(0, (5, 6, 7), 3, SamplingParams(temperature=0), 0, (), ())
    plan = StepPlan(1, (Row(0, 0, 3, (2,), True, True),), new=(new,))
    (token,) = runner.result(runner.start_step(plan)).token_ids
    lockstep = torch_runner()
    assert lockstep.result(lockstep.start_step(plan)).token_ids == (token,)


def test_running_out_of_memory_in_a_capture_is_not_hidden() -> None:
    class Full(HostStream):
        def capture(self, work: Callable[[], None]) -> Callable[[], None]:
            raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        gpu_runner(Full())


def test_each_graph_is_told_of() -> None:
    said: list[str] = []

    def progress(detail: str, *_: Any) -> None:
        said.append(detail)

    runner = gpu_runner(HostStream())
    runner.capture([StepSize(2, 2, chunks=False), StepSize(1, 1, chunks=False)], progress)
    assert said == ["capturing CUDA graph 1 of 2", "capturing CUDA graph 2 of 2"]


@pytest.mark.parametrize("runner", [lambda: gpu_runner(HostStream()), torch_runner])
def test_a_runner_whose_device_is_lost_says_so(
    runner: Callable[[], GpuRunner | TorchRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = runner()
    new = NewSequence(0, (5, 6, 7), 3, SamplingParams(temperature=0), 0, (), ())
    plan = StepPlan(1, (Row(0, 0, 3, (2,), True, True),), new=(new,))
    handle = made.start_step(plan)
    made._device = torch.device("cuda")
    monkeypatch.setattr("engine.model.machine.device._is_lost", lambda _device: True)

    def fail(*_: object) -> None:
        raise RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered")

    for name in ("append", "extend"):
        monkeypatch.setattr(made._batch, name, fail)
    lost = "cuda computes nothing any more: "
    with pytest.raises(DeviceLostError, match=lost):
        made.result(handle)
    with pytest.raises(DeviceLostError, match=lost):
        made.start_step(StepPlan(2, (Row(0, 3, 1, (), True, False),)))


def test_a_closed_runner_holds_nothing_on_its_device() -> None:
    """Whoever loads the next model still has it, and memory is measured by then."""
    runner = gpu_runner(HostStream())
    here: list[object] = [runner._words, runner._tokens, runner._forward, runner._storage]
    here += [one for one in vars(runner._sampler).values() if isinstance(one, torch.Tensor)]
    seen = [weakref.ref(one) for one in here]
    assert len(seen) > 8
    here.clear()
    runner.close()
    gc.collect()
    assert [one() for one in seen] == [None] * len(seen)
