"""The core under random arrivals, aborts, stops, knobs, deadlines and failures, at both depths.

`CoreHarness` checks every invariant after every step; here is what happens to it.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from engine.api.errors import InvalidConfigError
from engine.api.knobs import FILL_NAMES, PREEMPTION_NAMES, VICTIM_NAMES
from engine.api.lifecycle import FinishReason
from engine.api.origin import Origin
from engine.core.failures import MOST_FAILURES
from engine.scheduling.orders import ORDERS, reorder
from engine.scheduling.policies import POLICIES
from tests.support.harness import CoreHarness

# A tenth of all tokens end a sequence that heeds them.
EOS = range(0, 1000, 10)
TREES = [[(tree * 97 + i * 13) % 1000 for i in range(64)] for tree in range(3)]

RUNNING_KNOBS = {
    "max_num_seqs": st.integers(0, 8),
    "max_num_batched_tokens": st.integers(0, 24),
    "prefill_chunk": st.integers(0, 9),
    "max_partial_prefills": st.integers(0, 2),
    "watermark": st.sampled_from((0.0, 0.1, 0.5, 0.6)),
    "prefix_caching": st.booleans(),
    "queue_limit": st.integers(0, 6),
}
POLICY_KNOBS = {
    "policy": st.sampled_from((*POLICIES, "none")),
    "order": st.sampled_from((*ORDERS, "none")),
    "victim": st.sampled_from(VICTIM_NAMES),
    "preemption": st.sampled_from(PREEMPTION_NAMES),
    "static_batch_size": st.integers(0, 5),
    "static_fill": st.sampled_from(FILL_NAMES),
    "batch_window_ms": st.sampled_from((0.0, 15.0, 200.0)),
    "waiting_served_ratio": st.sampled_from((0.0, 0.3, 2.0)),
    "max_waiting_tokens": st.integers(0, 4),
    "ageing": st.sampled_from((0.0, 0.02, 60.0)),
    "user_weights": st.sampled_from(("", "ann=3", "ann=0.5,bob=2", "ann=0")),
}
HALTING_KNOBS = {"draining": st.booleans(), "paused": st.booleans()}

# Lengths are in tenths of what fits, so that most requests are served and a few are refused.
REQUESTS = st.fixed_dictionaries(
    {
        "tree": st.integers(0, 2),
        "shared": st.integers(0, 6),
        "own": st.integers(0, 4),
        "max_tokens": st.none() | st.integers(0, 7),
        "min_tokens": st.sampled_from((0, 0, 3)),
        "ignore_eos": st.booleans(),
        "seed": st.none() | st.integers(0, 2),
        "stop_token_ids": st.sampled_from(((), tuple(range(5, 1000, 25)))),
        "logprobs": st.sampled_from((None, None, 0, 2)),
        "prompt_logprobs": st.sampled_from((None, None, 0, 2)),
        "priority": st.integers(-1, 1),
        "user": st.sampled_from(("ann", "bob", "eve")),
        "fork": st.sampled_from((None, None, None, 0, 1, 5)),
        "cache_salt": st.sampled_from(("", "", "a", "b")),
        "deadline": st.sampled_from((None, None, None, 0.005, 0.05, 0.5)),
    }
)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Hundreds of steps fail here on purpose, each with a traceback in the log."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


class Traffic:
    """Requests of random shape for one engine, and the verdict once all have ended."""

    def __init__(self, engine: CoreHarness) -> None:
        self.engine = engine
        self.names: list[str] = []
        self.may_fail = False
        self._room = min(engine.config.max_model_len, engine.config.num_slots)

    def submit(self, request: dict[str, object]) -> None:
        options = dict(request)
        name = f"r{len(self.names)}"
        self.names.append(name)
        tree, shared, own = (int(str(options.pop(key))) for key in ("tree", "shared", "own"))
        suffix = [(len(self.names) * 31 + i) % 1000 for i in range(own * self._room // 10)]
        prompt = TREES[tree][: shared * self._room // 10] + suffix
        back = options.pop("fork")
        if isinstance(back, int):
            source = self.names[max(0, len(self.names) - 2 - back)]
            options["fork_of"] = source
            prompt = self._branch(source, own) or prompt
        max_tokens = options.pop("max_tokens")
        if isinstance(max_tokens, int):
            least = 1 if options["prompt_logprobs"] is None else 0
            max_tokens = max(least, max_tokens * self._room // 10)
            options["min_tokens"] = min(int(str(options["min_tokens"])), max_tokens)
        else:
            max_tokens = None
        self.engine.submit(
            name,
            prompt,
            max_tokens,
            temperature=0.0 if options["seed"] is None else 1.0,
            origin=Origin(user=str(options.pop("user"))),
            **options,
        )

    def _branch(self, source: str, own: int) -> list[int]:
        """The start of a fork of `source`: its prompt, or its answer so far with a turn."""
        known = self.engine._prompts.get(source)
        if known is None:
            return []
        return [*known[0], *self.engine.tokens.get(source, [])[: 2 * own], *range(own // 2)]

    def turn(self, changes: dict[str, object]) -> None:
        """Change knobs, to values that may not be allowed."""
        before = self.engine.core.ledger.knobs
        refusal = None
        try:
            self.engine.core.change_knobs(changes, "test")
        except InvalidConfigError as error:
            refusal = error
        if refusal is not None:
            assert refusal.param in changes
            assert self.engine.core.ledger.knobs == before

    def speaking(self) -> list[str]:
        """Requests that have put out tokens and not ended."""
        ends, tokens = self.engine.ends, self.engine.tokens
        return [name for name in self.names if name not in ends and tokens.get(name)]

    def stop(self, pick: int, back: int) -> None:
        """A stop string ended in one of the last tokens of one that speaks."""
        if speaking := self.speaking():
            name = speaking[pick % len(speaking)]
            self.engine.stop(name, max(1, len(self.engine.tokens[name]) - back))
            self.engine.core.check()

    def abort(self, pick: int) -> None:
        """Mostly one of the last, which may have ended; sometimes one that never was."""
        recent = [*self.names[-8:], "nobody"]
        self.engine.core.abort(recent[pick % len(recent)])
        self.engine.core.check()

    def set_priority(self, pick: int, priority: int) -> None:
        """Of one that waits, runs or has ended; those that wait stand as if it had always been."""
        recent = [*self.names[-8:], "nobody"]
        core, queue = self.engine.core, self.engine.scheduler.waiting
        core.set_priority(recent[pick % len(recent)], priority)
        anew = reorder(core._scheduler._ordered_by, queue)
        assert queue.head(1000) == anew.head(1000)
        core.check()

    def spoil(self, kind: str, ahead: int) -> None:
        """A step soon fails, or the logits of a sequence, here or to come, are not finite."""
        self.may_fail = True
        runner, core = self.engine.runner, self.engine.core
        failing = [
            one for one in runner.fail_starts | runner.fail_steps if one >= len(runner.plans)
        ]
        if core._failures.in_a_row + len(failing) >= MOST_FAILURES - 1:
            return  # so many in a row end the engine
        if kind == "nan":
            runner.nan_seqs.add(core._table._arrivals.count - 2 + ahead)
        else:
            (runner.fail_starts if kind == "start" else runner.fail_steps).add(
                len(runner.plans) + ahead
            )

    def pin(self, tree: int, length: int) -> None:
        """One of the prefixes that many share; more than the pool can spare is refused."""
        self.engine.core.pins.pin(f"tree{tree}", TREES[tree][:length])
        self.engine.core.check()

    def finish(self) -> None:
        """Nothing holds anybody up now: neither a pause, nor company that does not come."""
        changes = {
            "paused": False,
            "draining": False,
            "static_fill": "idle",
            "batch_window_ms": 0.0,
        }
        self.engine.core.change_knobs(changes, "test")
        self.engine.finish(max_steps=20_000)
        allowed = [
            "invalid_request_error",
            "context_length_error",
            "overloaded_error",
            "deadline_error",
        ]
        for name, end in self.engine.ends.items():
            if end.reason is FinishReason.ERROR:
                assert end.error is not None
                assert end.error.type in allowed + ["engine_error"] * self.may_fail, name
        totals = self.engine.snapshot().totals
        ended = totals.finished + totals.aborted + totals.failed + totals.refused
        assert totals.requests == len(self.names) == ended
        assert totals.output_tokens == sum(map(len, self.engine.tokens.values()))


class CoreMachine(RuleBasedStateMachine):
    """One engine and everything that can happen to it."""

    @initialize(
        depth=st.sampled_from((1, 2)),
        num_blocks=st.integers(4, 20),
        num_host_blocks=st.sampled_from((0, 3, 40)),
        num_snapshots=st.sampled_from((None, None, 0, 2, 9)),
        preemption=st.sampled_from(PREEMPTION_NAMES),
        block_size=st.sampled_from((1, 2, 4)),
        max_model_len=st.sampled_from((12, 40, 64)),
        max_num_seqs=st.integers(1, 6),
        spare_budget=st.integers(0, 20),
        watermark=st.sampled_from((0.0, 0.2)),
        policy=st.sampled_from(tuple(POLICIES)),
        order=st.sampled_from(tuple(ORDERS)),
    )
    def start(self, max_num_seqs: int, spare_budget: int, **config: object) -> None:
        engine = CoreHarness(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_seqs + spare_budget,
            eos=EOS,
            **config,  # type: ignore[arg-type]
        )
        self.traffic = Traffic(engine)

    @rule(
        requests=st.lists(REQUESTS, min_size=1, max_size=4),
        steps=st.integers(0, 4),
    )
    def submit(self, requests: list[dict[str, object]], steps: int) -> None:
        for request in requests:
            if not self.traffic.names:
                request = request | {"fork": None}
            self.traffic.submit(request)
        self._step(steps)

    @rule(
        resume=st.booleans(),
        wait=st.sampled_from((0.0, 0.0, 0.01, 0.4)),
        steps=st.integers(1, 12),
    )
    def go_on(self, resume: bool, wait: float, steps: int) -> None:
        engine = self.traffic.engine
        if resume:
            engine.core.change_knobs({"paused": False, "draining": False}, "test")
        engine.clock.advance(wait)
        self._step(steps)

    @rule(pick=st.integers(0, 8))
    def abort(self, pick: int) -> None:
        self.traffic.abort(pick)

    @rule(pick=st.integers(0, 8), priority=st.integers(-2, 2))
    def set_priority(self, pick: int, priority: int) -> None:
        self.traffic.set_priority(pick, priority)

    @precondition(lambda self: self.traffic.speaking())
    @rule(pick=st.integers(0, 1000), back=st.integers(0, 3))
    def stop(self, pick: int, back: int) -> None:
        self.traffic.stop(pick, back)

    @rule(changes=st.fixed_dictionaries({}, optional=RUNNING_KNOBS), steps=st.integers(0, 2))
    def turn(self, changes: dict[str, object], steps: int) -> None:
        self.traffic.turn(changes)
        self._step(steps)

    @rule(changes=st.fixed_dictionaries({}, optional=POLICY_KNOBS), steps=st.integers(0, 3))
    def switch(self, changes: dict[str, object], steps: int) -> None:
        self.traffic.turn(changes)
        self._step(steps)

    @rule(tree=st.integers(0, 2), length=st.integers(0, 30), again=st.booleans())
    def pin(self, tree: int, length: int, again: bool) -> None:
        self.traffic.engine.core.pins.unpin(f"tree{tree}")
        if again:
            self.traffic.pin(tree, length)

    @rule(changes=st.fixed_dictionaries({}, optional=HALTING_KNOBS), steps=st.integers(0, 2))
    def halt(self, changes: dict[str, object], steps: int) -> None:
        self.traffic.turn(changes)
        self.traffic.engine.snapshot()
        self._step(steps)

    @rule()
    def undo(self) -> None:
        self.traffic.engine.core.undo_knobs("test")

    @rule(kind=st.sampled_from(("result", "start", "nan")), ahead=st.integers(1, 3))
    def spoil(self, kind: str, ahead: int) -> None:
        self.traffic.spoil(kind, ahead)

    def teardown(self) -> None:
        if hasattr(self, "traffic"):
            self.traffic.finish()

    def _step(self, count: int) -> None:
        for _ in range(count):
            self.traffic.engine.step()


class LongCoreMachine(CoreMachine):
    """The same with other examples each time, and longer ones."""


TestCore = CoreMachine.TestCase
TestCore.settings = settings(max_examples=120, stateful_step_count=40)

TestLongCore = pytest.mark.long(LongCoreMachine.TestCase)
TestLongCore.settings = settings(
    max_examples=3_000,
    stateful_step_count=80,
    derandomize=False,
    suppress_health_check=list(HealthCheck),
)


def some_request(rng: random.Random, *, may_fork: bool) -> dict[str, object]:
    max_tokens = rng.randrange(5)
    return {
        "tree": rng.randrange(3),
        "shared": rng.randrange(5),
        "own": rng.randrange(1, 3),
        "max_tokens": max_tokens,
        "min_tokens": rng.choice((0, 0, 2)),
        "ignore_eos": rng.random() < 0.7,
        "seed": rng.choice((None, 1, 2)),
        "stop_token_ids": (),
        "prompt_logprobs": rng.choice((None, None, None, 1)),
        "priority": rng.randrange(3),
        "user": rng.choice(("ann", "ann", "bob")),
        "fork": rng.choice((None, None, None, 0, 1)) if may_fork else None,
        "cache_salt": rng.choice(("", "", "a")),
        "deadline": rng.choice((None, None, None, 2.0)),
    }


def some_limits(rng: random.Random) -> dict[str, object]:
    return {
        "max_num_seqs": rng.randrange(1, 9),
        "max_num_batched_tokens": rng.randrange(9, 25),
        "prefill_chunk": rng.choice((0, 4, 7)),
        "prefix_caching": rng.random() < 0.8,
    }


def some_policy(rng: random.Random) -> dict[str, object]:
    return {
        "policy": rng.choice(tuple(POLICIES)),
        "order": rng.choice(tuple(ORDERS)),
        "victim": rng.choice(VICTIM_NAMES),
        "preemption": rng.choice(PREEMPTION_NAMES),
        "static_fill": rng.choice(FILL_NAMES),
        "static_batch_size": rng.choice((1, 3, 8)),
        "batch_window_ms": rng.choice((0.0, 50.0)),
        "max_partial_prefills": rng.choice((0, 1, 2)),
        "waiting_served_ratio": rng.choice((0.0, 0.3, 2.0)),
        "max_waiting_tokens": rng.choice((1, 4)),
        "ageing": rng.choice((0.0, 0.02, 60.0)),
        "user_weights": rng.choice(("", "ann=3,bob=0.5")),
    }


def drive(
    seed: int,
    depth: int,
    steps: int,
    policy: str | None = None,
    num_snapshots: int | None = None,
) -> CoreHarness:
    """One long life of an engine: far more traffic than the machine above, but no shrinking.

    Args:
        policy: the one it keeps; None changes it, and the order, in mid-flight.
    """
    rng = random.Random(seed)
    engine = CoreHarness(
        depth=depth,
        num_blocks=rng.choice((24, 40)),
        block_size=rng.choice((2, 4)),
        max_num_seqs=8,
        max_num_batched_tokens=24,
        eos=EOS,
        policy=policy or rng.choice(tuple(POLICIES)),
        order=rng.choice(tuple(ORDERS)),
        victim=rng.choice(VICTIM_NAMES),
        num_host_blocks=rng.choice((6, 30)),
        num_snapshots=num_snapshots,
        preemption=rng.choice(PREEMPTION_NAMES),
    )
    traffic = Traffic(engine)
    for i in range(steps):
        if rng.random() < 0.15:
            traffic.submit(some_request(rng, may_fork=bool(traffic.names)))
        action = rng.random()
        if action < 0.03:
            traffic.abort(rng.randrange(8))
        elif action < 0.05:
            traffic.stop(rng.randrange(1000), rng.randrange(3))
        elif action < 0.07:
            traffic.turn(some_limits(rng))
        elif action < 0.08:
            traffic.turn({rng.choice(("paused", "draining")): True})
        elif action < 0.11:
            traffic.turn({"paused": False, "draining": False})
        elif action < 0.12 and policy is None:
            engine.core.undo_knobs("test")
        elif action < 0.13:
            traffic.spoil(rng.choice(("result", "start", "nan")), rng.randrange(1, 4))
        elif action < 0.15 and policy is None:
            traffic.turn(some_policy(rng))
        elif action < 0.16:
            traffic.pin(rng.randrange(3), rng.randrange(20))
        engine.step()
        if i % 20 == 0:
            engine.snapshot()
    traffic.finish()
    return engine


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("policy", tuple(POLICIES))
def test_a_crowd_through_a_small_pool(policy: str, depth: int) -> None:
    """Hundreds of requests of all kinds, with everything that can happen to them."""
    engine = drive(5, depth, 700, policy)
    totals = engine.snapshot().totals
    # The run is worth something only if it went through all of these.
    assert totals.finished > 30
    assert totals.evictions > 100
    assert totals.prefix_hit_tokens > 100
    assert totals.aborted > 5
    assert totals.failed > 2
    assert any(record.error for record in engine.records)
    assert {record.policy for record in engine.records} == {policy}


@pytest.mark.parametrize("depth", [1, 2])
def test_a_crowd_through_changing_policies(depth: int) -> None:
    """Switching in mid-flight loses nobody and changes no token; all orders, all victims."""
    engine = drive(8, depth, 4_000)
    totals = engine.snapshot().totals
    assert {record.policy for record in engine.records} == set(POLICIES)
    assert totals.finished > 50
    assert totals.preemptions > 10
    assert totals.evictions > 100
    assert sum(bool(plan.copies) for plan in engine.runner.plans) > 3
    assert sum(record.bubble_tokens for record in engine.records) > 5
    assert sum(record.padding_tokens for record in engine.records) > 5


@pytest.mark.parametrize("depth", [1, 2])
def test_a_crowd_over_a_model_with_states(depth: int) -> None:
    engine = drive(11, depth, 1_500, num_snapshots=5)
    totals = engine.snapshot().totals
    assert totals.finished > 50
    assert totals.preemptions > 5
    assert totals.failed > 2
    assert totals.prefix_hit_tokens > 50
    assert sum(len(plan.restores) for plan in engine.runner.plans) > 10


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("num_snapshots", [None, 3])
def test_many_crowds(seed: int, depth: int, num_snapshots: int | None) -> None:
    drive(seed, depth, 3_000, num_snapshots=num_snapshots)
