"""Launches overlap where a model decodes the same with it, and faster."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch

pytest.importorskip("triton")

from triton.runtime.interpreter import GridExecutor

from engine.api.config import EngineConfig
from engine.api.sampling import SamplingParams
from engine.batch.plan import NewSequence, Row, StepPlan
from engine.model.gpu import forward as gpu_forward
from engine.model.gpu.forward import GpuForward, make_gpu_program
from engine.model.gpu.overlapped import Decoded, decode_alone, overlap_pays
from engine.model.gpu.runner import GpuRunner
from engine.model.gpu.stream import HostStream
from engine.model.running.forward import make_forward
from engine.model.running.runner import TorchRunner
from engine.model.tracing.trace import trace
from engine.triton import overlap
from tests.support.zoo import tiny_model

HOPPER = (9, 0)
# Six steps of one row, the fifth of which begins a second block.
ENVELOPE = EngineConfig(
    num_blocks=8, max_model_len=7, block_size=4, max_num_seqs=2, max_num_batched_tokens=8
)
SHAPE = trace(type(tiny_model("llama")), tiny_model("llama").config, torch.float32).shape
LOGITS = torch.tensor([1.0, float("nan"), -0.0])


def decoded(
    milliseconds: float, tokens: tuple[int, ...] = (2, 1), logits: torch.Tensor = LOGITS
) -> Decoded:
    return Decoded(tokens, logits.clone(), (milliseconds / 1000,) * 3)


class Scripted:
    """Decodes as it is told, and notes which way."""

    def __init__(self, plain: Decoded, overlapped: Callable[[], Decoded]) -> None:
        self.plain, self.overlapped = plain, overlapped
        self.ways: list[bool] = []

    def __call__(self, overlaps: bool) -> Decoded:
        self.ways.append(overlaps)
        return self.overlapped() if overlaps else self.plain


def test_what_is_the_same_and_faster_stays(caplog: pytest.LogCaptureFixture) -> None:
    decode = Scripted(decoded(2.5), lambda: decoded(2.25))
    with caplog.at_level(logging.INFO):
        assert overlap_pays(decode, HOPPER, name="llama")
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    message = "llama: launches overlap; a step of one row takes 2.250 ms if they do, else 2.500 ms"
    assert record.getMessage() == message
    assert decode.ways == [False, True] * (len(decode.ways) // 2)
    assert len(decode.ways) > 2, "in turns"


def test_what_is_the_same_and_no_faster_goes(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert not overlap_pays(Scripted(decoded(2.5), lambda: decoded(2.5)), HOPPER, name="llama")
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert "do not overlap" in record.getMessage()


def test_one_slow_step_decides_nothing() -> None:
    slow = replace(decoded(1.0), seconds=(0.001, 0.001, 0.5))
    assert overlap_pays(Scripted(decoded(2.0), lambda: slow), HOPPER, name="llama")


@pytest.mark.parametrize(
    "other",
    [
        decoded(1.0, tokens=(2, 2)),
        decoded(1.0, logits=torch.tensor([1.0, float("nan"), 0.0])),
        decoded(1.0, logits=torch.tensor([1.0, 5.0, -0.0])),
    ],
    ids=["token", "bit", "number"],
)
def test_what_differs_goes(other: Decoded, caplog: pytest.LogCaptureFixture) -> None:
    assert not overlap_pays(Scripted(decoded(2.0), lambda: other), HOPPER, name="llama")
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "something else" in record.getMessage()


def test_what_differs_once_goes() -> None:
    turns = iter((decoded(1.0), decoded(1.0), decoded(1.0, tokens=(0, 0))))
    assert not overlap_pays(Scripted(decoded(2.0), lambda: next(turns)), HOPPER, name="llama")


def test_what_fails_goes(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> Decoded:
        raise RuntimeError("operation not permitted")

    assert not overlap_pays(Scripted(decoded(2.0), fail), HOPPER, name="llama")
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "launches do not overlap: RuntimeError: operation not permitted" in record.getMessage()


@pytest.mark.parametrize(
    ("capability", "version"),
    [((8, 9), "2.13.0"), ((12, 0), "2.13.0+cu130"), ((9, 0), "2.11.1+cu130")],
)
def test_a_gpu_or_a_torch_that_cannot_is_not_asked(
    capability: tuple[int, int], version: str, caplog: pytest.LogCaptureFixture
) -> None:
    decode = Scripted(decoded(2.0), lambda: decoded(1.0))
    with caplog.at_level(logging.INFO):
        assert not overlap_pays(decode, capability, name="llama", torch_version=version)
    assert not decode.ways
    assert not caplog.records


def test_a_model_that_cannot_decode_at_all_says_so() -> None:
    def decode(overlaps: bool) -> Decoded:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        overlap_pays(decode, HOPPER, name="llama")


def gpu_forward_of(name: str) -> GpuForward:
    forward = make_forward(tiny_model(name), ENVELOPE, SHAPE, "triton")
    assert isinstance(forward, GpuForward)
    return forward


class NoCapture(HostStream):
    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        raise RuntimeError("operation not permitted when stream is capturing")


def test_steps_give_what_one_after_the_other_gives() -> None:
    forward = gpu_forward_of("llama")

    def runner_for(config: EngineConfig) -> GpuRunner:
        return GpuRunner(forward, config, SHAPE, HostStream())

    found = decode_alone(forward, runner_for, ENVELOPE, False)
    lockstep = TorchRunner(
        make_forward(tiny_model("llama"), ENVELOPE, SHAPE, "torch"), ENVELOPE, SHAPE
    )
    new = NewSequence(0, (0,), 1, SamplingParams(temperature=0), 0, (), ())
    tokens: list[int] = []
    for start in range(6):
        blocks = {0: (0,), 4: (1,)}.get(start, ())
        plan = StepPlan(
            start + 1, (Row(0, start, 1, blocks, True, False),), new=() if start else (new,)
        )
        tokens += lockstep.result(lockstep.start_step(plan)).token_ids
    assert found.tokens == tuple(tokens)
    assert int(found.logits.argmax()) == tokens[-1]
    assert len(found.seconds) == 6
    # The logits are a copy, not what the next steps write over.
    assert found.is_same(decode_alone(forward, runner_for, ENVELOPE, True))
    forward.logits.fill_(7.0)
    assert int(found.logits.argmax()) == tokens[-1]


class Launched(NamedTuple):
    kernel: str
    waits: bool
    starts_early: bool


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Launched]:
    """The launches, none of which is done."""
    launches: list[Launched] = []

    def launch(executor: Any, *_: Any, **named: Any) -> None:
        waits, starts_early = named.get("OVERLAP", False), named.get("launch_pdl", False)
        launches.append(Launched(executor.fn.__name__, waits, starts_early))

    monkeypatch.setattr(GridExecutor, "__call__", launch)
    monkeypatch.setattr(gpu_forward, "_verify", lambda *_: 0.0)
    monkeypatch.setattr(overlap, "is_interpreted", lambda: False)
    return launches


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_all_launches_of_a_step_overlap_but_the_first(name: str, launched: list[Launched]) -> None:
    model = tiny_model(name)
    shape = trace(type(model), model.config, model.dtype).shape
    forward = make_gpu_program(model, ENVELOPE, shape)

    def runner_for(config: EngineConfig) -> GpuRunner:
        return GpuRunner(forward, config, shape, HostStream())

    decode_alone(forward, runner_for, ENVELOPE, True)
    first = [launch for launch in launched if launch.kernel == "_update"]
    others = [launch for launch in launched if launch.kernel != "_update"]
    # The step starts with blocks that are put into the tables, and ends with a token.
    assert (launched[0], launched[-1].kernel) == (Launched("_update", False, False), "choose")
    assert {(one.waits, one.starts_early) for one in first} == {(False, False)}
    assert {(one.waits, one.starts_early) for one in others} == {(True, True)}
    launched.clear()
    decode_alone(forward, runner_for, ENVELOPE, False)
    assert {(one.waits, one.starts_early) for one in launched} == {(False, False)}


def test_a_graph_that_cannot_be_captured_is_a_failure_of_overlapping_alone(
    launched: list[Launched],
) -> None:
    forward = gpu_forward_of("llama")

    def runner_for(config: EngineConfig) -> GpuRunner:
        return GpuRunner(forward, config, SHAPE, NoCapture())

    decode_alone(forward, runner_for, ENVELOPE, False)
    with pytest.raises(RuntimeError, match="cannot be captured"):
        decode_alone(forward, runner_for, ENVELOPE, True)
