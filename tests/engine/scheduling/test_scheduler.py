"""The scheduler between plans: what the runner is told, ends, preemptions, reasons."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from engine.api.config import EngineConfig
from engine.api.knob_spec import KnobValue
from engine.api.knobs import KNOB_SPECS, ORDER_NAMES, Knobs
from engine.api.lifecycle import FinishReason
from engine.api.waiting import in_words
from engine.batch.plan import Request
from engine.cache.manager import KVCache
from engine.core.failures import drop_doubtful, undo
from engine.scheduling.composer import Policy, StepComposer
from engine.scheduling.effective import effective
from engine.scheduling.orders import ORDERS
from engine.scheduling.policies import DEFAULT, POLICIES, policy_names
from engine.scheduling.scheduler import Planned, Scheduler
from tests.support.harness import CoreHarness, make_request

CONFIG = EngineConfig(num_blocks=16, block_size=4, num_host_blocks=16, max_model_len=64)


def make_scheduler(num_blocks: int = 16, max_num_seqs: int = 4) -> tuple[Scheduler, Knobs]:
    config = EngineConfig(
        num_blocks=num_blocks,
        block_size=4,
        num_host_blocks=16,
        max_model_len=64,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=32,
    )
    knobs = Knobs(max_num_seqs=max_num_seqs, max_num_batched_tokens=32, watermark=0.0)
    return Scheduler(KVCache(config, "key"), knobs), knobs


def add(scheduler: Scheduler, ordinal: int, prompt: int = 6, **fields: object) -> Request:
    request = make_request(ordinal, range(ordinal * 100, ordinal * 100 + prompt), **fields)
    scheduler.add(request)
    return request


def plan(scheduler: Scheduler, knobs: Knobs) -> Planned:
    planned = scheduler.plan(knobs, 0.0)
    assert planned is not None
    return planned


def end_step(scheduler: Scheduler, planned: Planned) -> None:
    """Take a step in; every row that samples gets token 7."""
    for request, row in zip(planned.requests, planned.plan.rows, strict=True):
        request.num_in_flight -= row.samples
        if row.samples and request.finish_reason is None:
            request.output_token_ids.append(7)
    scheduler.end_step(planned, publish=True)


def held_up(scheduler: Scheduler, knobs: Knobs) -> dict[str, tuple[KnobValue, str]]:
    """Knobs that are not in force, but for those that policy or order ignore."""
    notes = effective(knobs, scheduler.policy, scheduler.books)
    return {name: note for name, note in notes.items() if not note[1].startswith("ignored by ")}


def test_stall_free_is_the_default() -> None:
    assert Knobs().policy == DEFAULT == policy_names()[0] == "stall_free"
    assert Knobs().order in ORDERS
    assert tuple(ORDERS) == ORDER_NAMES


def test_the_policy_changes_with_its_knob(monkeypatch: pytest.MonkeyPatch) -> None:
    class LastFirst(Policy):
        """Admits nobody, and uses one of the knobs that the default uses."""

        name = "last_first"
        uses = frozenset({"max_partial_prefills"})

        def compose(self, step: StepComposer) -> None:
            for request in reversed(step.running):
                step.schedule(request)

    monkeypatch.setitem(POLICIES, "last_first", LastFirst)
    scheduler, knobs = make_scheduler(max_num_seqs=2)
    for ordinal in range(1, 4):
        add(scheduler, ordinal)
    end_step(scheduler, plan(scheduler, knobs))
    other = Knobs(policy="last_first", max_num_seqs=4, prefill_chunk=3)
    planned = plan(scheduler, other)
    assert [row.seq for row in planned.plan.rows] == [2, 1]
    notes = effective(other, scheduler.policy, scheduler.books)
    assert notes["prefill_chunk"] == (3, "ignored by last_first")
    assert "max_partial_prefills" not in notes
    assert in_words(scheduler.head_wait) == "held by last_first"
    assert effective(knobs, scheduler.policy, scheduler.books)["policy"] == (
        "last_first",
        "takes effect with the next step",
    )
    end_step(scheduler, planned)
    assert [row.seq for row in plan(scheduler, knobs).plan.rows] == [1, 2]
    assert "prefill_chunk" not in effective(knobs, scheduler.policy, scheduler.books)


def test_a_sequence_is_new_once_and_released_once() -> None:
    scheduler, knobs = make_scheduler()
    gone, stays = add(scheduler, 1), add(scheduler, 2)
    first = plan(scheduler, knobs)
    assert [new.seq for new in first.plan.new] == [1, 2]
    end_step(scheduler, first)
    scheduler.finish(gone, FinishReason.ABORT)
    scheduler.finish(gone, FinishReason.STOP)
    assert gone.finish_reason is FinishReason.ABORT
    second = plan(scheduler, knobs)
    assert (second.plan.new, second.plan.released) == ((), (1,))
    end_step(scheduler, second)
    scheduler.preempt([stays], knobs)
    third = plan(scheduler, knobs)
    assert third.plan.released == (2,)
    assert [new.seq for new in third.plan.new] == [2]
    assert third.preempted == (stays,)
    end_step(scheduler, third)
    assert plan(scheduler, knobs).plan.released == ()


def test_what_a_preempted_sequence_computed_is_not_published_into_its_new_table() -> None:
    """Depth 2: the step of the old table ends after the request was admitted again."""
    scheduler, knobs = make_scheduler()
    knobs = Knobs(max_num_seqs=4, max_num_batched_tokens=8, prefix_caching=True, watermark=0.0)
    request = add(scheduler, 1, prompt=12)
    first = plan(scheduler, knobs)  # 8 of 12 tokens, nothing sampled
    scheduler.preempt([request], knobs)
    second = plan(scheduler, knobs)
    assert [new.seq for new in second.plan.new] == [1]
    assert (first.epochs, second.epochs) == ((0,), (1,))
    end_step(scheduler, first)
    assert len(scheduler.cache.index) == 0
    end_step(scheduler, second)
    assert len(scheduler.cache.index) == 2
    scheduler.check()


def test_a_copy_that_no_plan_has_yet_is_given_up_when_a_step_fails() -> None:
    """The copy would read results of the failed step."""
    scheduler, knobs = make_scheduler()
    knobs = replace(knobs, preemption="swap")
    request = add(scheduler, 1)
    planned = plan(scheduler, knobs)
    StepComposer(knobs, scheduler.books).preempt(request)
    assert request.host_blocks
    undo(scheduler.books, planned)
    assert drop_doubtful(scheduler.books, [planned]) == []
    assert (request.host_blocks, request.num_computed_tokens) == ([], 0)
    scheduler.check()


def test_those_spared_by_a_failure_keep_their_order() -> None:
    """Blocks are let go in the order of the rows, so that runs can be repeated."""
    engine = CoreHarness(num_blocks=256, max_num_seqs=64, max_num_batched_tokens=128)
    for i in range(40):
        engine.submit(f"r{i}", [i, 1, 2], 6)
    engine.step()
    engine.runner.fail_steps = {2}
    engine.submit("blamed", [3, 3, 3], 6)
    engine.step()
    assert engine.ends["blamed"].error is not None
    engine.step()
    assert engine.records[-1].preempted == tuple(f"r{i}" for i in range(40))
    engine.finish()


def test_check_sees_a_request_that_waits_with_blocks() -> None:
    scheduler, _knobs = make_scheduler()
    request = add(scheduler, 1)
    scheduler.check()
    scheduler.cache.extend(request, 4)
    with pytest.raises(AssertionError):
        scheduler.check()


def test_the_reason_goes_when_nobody_waits() -> None:
    scheduler, knobs = make_scheduler(max_num_seqs=1)
    add(scheduler, 1)
    second = add(scheduler, 2)
    plan(scheduler, knobs)
    assert in_words(scheduler.head_wait)
    scheduler.finish(second, FinishReason.ABORT)
    plan(scheduler, knobs)
    assert in_words(scheduler.head_wait) == ""


def test_effective_is_requested_unless_something_holds_it_up() -> None:
    scheduler, knobs = make_scheduler()
    for ordinal in range(1, 4):
        add(scheduler, ordinal)
    assert held_up(scheduler, knobs) == {}
    plan(scheduler, knobs)
    assert held_up(scheduler, knobs) == {}
    fewer = Knobs(max_num_seqs=1, draining=True)
    assert held_up(scheduler, fewer) == {
        "max_num_seqs": (3, "2 more than requested still run"),
        "draining": (True, "3 still run"),
    }


def test_a_knob_without_effect_says_who_ignores_it() -> None:
    """Under every pair of policy and order, exactly those that neither names."""
    for policy, order in itertools.product(POLICIES, ORDERS):
        knobs = Knobs(policy=policy, order=order)
        scheduler = Scheduler(KVCache(CONFIG, "key"), knobs)
        uses = {"policy": POLICIES[policy].uses, "order": ORDERS[order].uses}
        names = {"policy": policy, "order": order}
        ignored = {
            spec.name: (getattr(knobs, spec.name), f"ignored by {names[spec.acts]}")
            for spec in KNOB_SPECS
            if spec.acts != "always" and spec.name not in uses[spec.acts]
        }
        notes = effective(knobs, scheduler.policy, scheduler.books)
        assert ignored == {
            name: notes[name] for name in notes if name not in held_up(scheduler, knobs)
        }
    everything = frozenset().union(*(p.uses for p in POLICIES.values()))
    everything |= frozenset().union(*(o.uses for o in ORDERS.values()))
    assert everything == {spec.name for spec in KNOB_SPECS if spec.acts != "always"}


def test_a_static_batch_is_no_larger_than_the_slots() -> None:
    scheduler, knobs = make_scheduler(max_num_seqs=4)
    knobs = replace(knobs, policy="static", static_batch_size=9)
    note = (4, "max_num_seqs allows no more")
    scheduler.plan(knobs, 0.0)
    assert held_up(scheduler, knobs) == {"static_batch_size": note}
    assert held_up(scheduler, replace(knobs, static_batch_size=4)) == {}


def test_parked_members_hold_their_slots() -> None:
    """Static: what has ended counts beyond a lower number of slots, until the batch ends."""
    engine = CoreHarness(policy="static", static_batch_size=3)
    for i, tokens in enumerate((1, 2, 5)):
        engine.submit(f"r{i}", [i, 1, 2], tokens)
    for _ in range(2):
        engine.step()
    assert set(engine.ends) == {"r0", "r1"}
    engine.core.change_knobs({"max_num_seqs": 1, "policy": "stall_free"}, "test")
    engine.submit("next", [9, 9], 2)
    engine.step()
    assert in_words(engine.core.head_wait) == "no slot: 3 of 1 are taken"
    state = next(s for s in engine.snapshot().knobs if s.name == "max_num_seqs")
    assert (state.effective, state.note) == (3, "2 more than requested still run")
    engine.finish()
