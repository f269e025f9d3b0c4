"""`benchmarks.smoke` measures the phases of a step, and the operations of a pass by kinds."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch

from benchmarks.kinds import COLUMNS, Profile, cells
from benchmarks.smoke import OUTPUT_TOKENS, Engine, Run, is_decode, kinds, main, make_prompts
from engine.api.telemetry import PhaseTimes, StepCost, StepRecord
from engine.batch.shape import ModelShape
from engine.native import kernels
from tests.support.zoo import tiny_model
from tests.widgets.samples import record

SHAPE = ModelShape(
    num_params=1_300_000,
    num_active_params=900_000,
    hidden_size=100,
    vocab_size=1_000,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    value_dim=16,
    windows=(None, None),
    dtype_bytes=2,
)
SECONDS = {"linear": 1e-3, "attend": 4e-4, "norm": 1e-4, "embed": 2e-5, "gather": 1e-5}


def step(scale: float) -> tuple[StepRecord, Profile]:
    """A decode of 8 rows that reads 2 MB of keys and values; its kernels take SECONDS, scaled."""
    written = 8 * SHAPE.kv_bytes_per_token
    one = record(
        1,
        prefill_tokens=0,
        decode_tokens=8,
        times=PhaseTimes(prepare=0.0, forward=scale * 2e-3, sample=0.0),
        cost=StepCost(0, SHAPE.weight_bytes + 2_000_000 + written),
    )
    return one, {kind: (3, scale * seconds) for kind, seconds in SECONDS.items()}


def test_kinds_are_medians_and_rates_count_what_each_kind_reads() -> None:
    steps = [step(1.0), step(2.0), step(1.0)]
    found = dict(zip(COLUMNS, cells(steps, SHAPE), strict=True))
    assert found == {
        "products": "1.000",
        "attention": "0.400",
        "norm": "0.100",
        "rotate": "0.000",
        "store": "0.000",
        "others": "0.030",
        "outside": "0.470",
        "GB/s": "2.0",  # the layers' matrices and the head, without the embedding
        "KV GB/s": "5.0",
    }


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a second one costs operators this small more than it gives
    yield Engine(tiny_model("llama", dtype=torch.bfloat16), 2, torch.device("cpu"))
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def run(engine: Engine) -> Run:
    return engine.run(make_prompts(engine.shape.vocab_size, 2, 0))


def test_each_step_has_its_own_profile(engine: Engine, run: Run) -> None:
    assert sum(is_decode(one) for one in run.steps) == OUTPUT_TOKENS - 1
    layers = engine.shape.num_layers
    for one, profile in zip(run.steps, run.profiles, strict=True):
        if kernels() is None:
            assert profile == {}
        else:
            assert profile["attend"][0] == layers
            assert 0 < sum(seconds for _, seconds in profile.values()) < one.times.forward


def test_an_unknown_model_is_refused_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["smoke", "--models", "builtin,389m"])
    with pytest.raises(SystemExit):
        main()
    output = capsys.readouterr()
    assert "--models: '389m' is none; it must be of builtin, 387m" in output.err
    assert not output.out


def test_without_kernels_there_are_no_kinds(engine: Engine, run: Run) -> None:
    assert (kinds([run], engine.shape) is None) == (kernels() is None)
    without = Run(run.seconds, run.timings, run.steps, [{} for _ in run.steps])
    assert kinds([without], engine.shape) is None
