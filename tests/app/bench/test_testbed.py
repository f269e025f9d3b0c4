from __future__ import annotations

from app.bench.testbed import EndingRunner
from engine.api.client import Submission
from engine.api.knobs import Knobs
from engine.api.lifecycle import FinishReason
from engine.api.sampling import SamplingParams
from engine.batch.plan import End
from engine.core.core import EngineCore
from tests.support.harness import CARD, SHAPE, CoreHarness
from tests.support.scripted_runner import reference

EOS = 998


def core_over(runner: EndingRunner, harness: CoreHarness) -> EngineCore:
    return EngineCore(
        config=harness.config,
        runner=runner,
        shape=SHAPE,
        card=CARD,
        key="ending",
        eos_token_ids=frozenset({EOS}),
        knobs=Knobs(max_num_seqs=8, max_num_batched_tokens=64, watermark=0.0),
        clock=harness.clock,
    )


def run(core: EngineCore, lengths: dict[str, tuple[int, int]]) -> dict[str, End]:
    """The ends of requests by name, each stated as its length and what it announces."""
    for name, (length, announced) in lengths.items():
        sampling = SamplingParams(temperature=0.0, min_tokens=length, max_tokens=announced)
        core.add_request(Submission(request_id=name), [ord(name)] * 5, sampling)
    ends = {}
    while not core.idle:
        ends.update({o.request_id: o.end for o in core.step() if o.end is not None})
        core.check()
    return ends


def test_every_sequence_ends_at_its_true_length_and_is_what_the_model_gives_before() -> None:
    for depth in (1, 2):
        harness = CoreHarness(depth=depth)
        core = core_over(EndingRunner(harness.runner, EOS), harness)
        lengths = {"a": (1, 20), "b": (7, 20), "c": (20, 20), "d": (0, 20)}
        ends = run(core, lengths)
        assert not harness.runner.violations
        for name, (length, _) in lengths.items():
            count = max(length, 1)
            assert ends[name].usage.completion_tokens == count
            assert ends[name].reason is FinishReason.STOP
            expected = reference([ord(name)] * 5, count, suppressed={EOS}, min_tokens=length)
            assert [*ends[name].token_ids[5:]] == [*expected[:-1], EOS]


def test_a_preempted_sequence_still_ends_at_its_length() -> None:
    harness = CoreHarness(num_blocks=9)
    core = core_over(EndingRunner(harness.runner, EOS), harness)
    ends = run(core, {"a": (14, 20), "b": (15, 20), "c": (13, 20)})
    assert sum(len(record.preempted) for record in core.records.since(0)) > 0
    assert {n: e.usage.completion_tokens for n, e in ends.items()} == {"a": 14, "b": 15, "c": 13}


def test_one_runner_serves_core_after_core_also_if_the_first_was_broken_off() -> None:
    harness = CoreHarness(max_num_seqs=8)
    runner = EndingRunner(harness.runner, EOS)
    first = core_over(runner, harness)
    for name in "abcdefgh":
        sampling = SamplingParams(temperature=0.0, min_tokens=9, max_tokens=9)
        first.add_request(Submission(request_id=name), [1, 2, 3], sampling)
    first.step()
    first.step()
    assert len(harness.runner._sequences) == 8
    harness.runner.plans.clear()  # it counts steps from 1, and so does a new core
    ends = run(core_over(runner, harness), dict.fromkeys("ijklmnop", (4, 9)))
    assert not harness.runner.violations
    assert {end.usage.completion_tokens for end in ends.values()} == {4}


def test_logits_that_are_not_finite_are_passed_on() -> None:
    harness = CoreHarness()
    harness.runner.nan_seqs.add(1)
    ends = run(core_over(EndingRunner(harness.runner, EOS), harness), {"a": (1, 9), "b": (1, 9)})
    assert [end.reason for end in ends.values()] == [FinishReason.ERROR, FinishReason.STOP]
