"""Forks and pinned prefixes through the whole core.

`ScriptedRunner` carries out copies and holds each sequence's context against its tokens.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.api.block_map import PinView
from engine.api.lifecycle import FinishReason
from engine.api.telemetry import BlockChange
from engine.api.waiting import in_words
from engine.scheduling.policies import POLICIES
from tests.support.harness import CoreHarness, states_of

PROMPT = list(range(100, 110))  # two full blocks of 4, and half of a third
PADDED = ("static", "dynamic")


def sample(engine: CoreHarness, count: int, prompt: list[int], outputs: int = 6) -> None:
    """`count` samples of one prompt, as a request for n of them makes."""
    for i in range(count):
        fork = {"fork_of": "s0"} if i else {}
        engine.submit(f"s{i}", prompt, outputs, temperature=1.0, seed=i, **fork)


class TestFork:
    @pytest.mark.parametrize("prefix_caching", [True, False])
    @pytest.mark.parametrize("depth", [1, 2])
    def test_four_samples_hold_a_prompt_once(self, depth: int, prefix_caching: bool) -> None:
        """Ten tokens: the two full blocks are held once by all four, the third is copied thrice."""
        engine = CoreHarness(depth=depth, prefix_caching=prefix_caching)
        sample(engine, 4, PROMPT)
        engine.step()
        while engine.core.num_unfinished and len(engine.scheduler.running) < 4:
            engine.step()
        assert (engine.pool.num_used, engine.pool.num_shared) == (2 + 4, 2)
        copies = [plan.copies for plan in engine.runner.plans if plan.copies]
        assert [len(pairs) for pairs in copies] == [3]
        assert len({source for source, _target in copies[0]}) == 1
        assert len({target for _source, target in copies[0]}) == 3
        engine.finish()
        assert engine.snapshot().totals.prefill_tokens == 10 + 3  # each fork runs one token
        assert len({tuple(tokens) for tokens in engine.tokens.values()}) == 4

    def test_a_prompt_that_ends_with_a_block(self) -> None:
        """Eight tokens: the last one has to run, so the second block is copied, with three."""
        engine = CoreHarness()
        sample(engine, 3, PROMPT[:8])
        engine.step()
        engine.step()
        (row,) = (row for row in engine.runner.plans[1].rows if row.seq == 2)
        assert (row.start, row.count, row.samples) == (7, 1, True)
        assert len(engine.runner.plans[1].copies) == 2
        assert engine.pool.num_shared == 1
        engine.finish()

    def test_forks_wait_until_the_prompt_is_computed(self) -> None:
        """Rather than compute it themselves; others are behind them."""
        engine = CoreHarness(max_num_batched_tokens=16, prefill_chunk=8)
        sample(engine, 2, list(range(20)))
        engine.step()
        reason = "the prompt it forks from, of s0, is being computed"
        assert in_words(engine.core.head_wait) == reason
        engine.step()
        assert in_words(engine.core.head_wait) == reason
        engine.step()
        engine.step()
        assert [new.seq for new in engine.runner.plans[3].new] == [2]
        engine.finish()

    @pytest.mark.parametrize("policy", tuple(POLICIES))
    @pytest.mark.parametrize("depth", [1, 2])
    def test_under_every_policy(self, policy: str, depth: int) -> None:
        engine = CoreHarness(policy=policy, depth=depth, batch_window_ms=0.0)
        sample(engine, 5, PROMPT)
        engine.finish()
        shared = sum(len(r.blocks.blocks(BlockChange.SHARED)) for r in engine.records)
        assert shared == (0 if policy in PADDED else 2 * 4)

    def test_a_static_batch_takes_its_forks_in_and_computes_each(self) -> None:
        """A padded batch shares nothing; and a full one of samples of one prompt must start."""
        engine = CoreHarness(policy="static", static_batch_size=4, static_fill="full")
        sample(engine, 4, PROMPT)
        engine.step()
        assert [row.count for row in engine.runner.plans[0].rows] == [10] * 4
        engine.finish()

    def test_a_turn_forks_at_any_token(self) -> None:
        """Another answer from the middle of the first one."""
        engine = CoreHarness(prefix_caching=False)
        engine.submit("a", PROMPT, 12)
        for _ in range(6):
            engine.step()
        branch = [*PROMPT, *engine.tokens["a"][:3], 7, 8]
        engine.submit("b", branch, 4, fork_of="a")
        engine.step()
        (row,) = (row for row in engine.runner.plans[-1].rows if row.seq == 2)
        assert (row.start, row.count) == (13, 2)
        assert engine.ends.get("b") is None
        engine.finish()
        assert engine.ends["b"].usage.cached_tokens == 13

    @pytest.mark.parametrize("depth", [1, 2])
    def test_a_fork_of_a_fork_waits_for_its_copy(self, depth: int) -> None:
        """Admitted together, the second would copy what is not yet copied."""
        engine = CoreHarness(depth=depth, prefix_caching=False)
        engine.submit("s0", PROMPT, 9)
        engine.submit("s1", PROMPT, 6, fork_of="s0")
        engine.submit("s2", PROMPT, 6, fork_of="s1")
        engine.finish()
        copies = [plan.copies for plan in engine.runner.plans if plan.copies]
        assert [len(pairs) for pairs in copies] == [1, 1]
        assert copies[0][0][1] == copies[1][0][0]

    @pytest.mark.parametrize("source", ["nobody", "ended", "waits"])
    def test_without_a_live_source_it_is_a_request_like_any_other(self, source: str) -> None:
        engine = CoreHarness(prefix_caching=False)
        if source == "ended":
            engine.submit(source, PROMPT, 2)
            engine.finish()
        engine.submit("fork", PROMPT, 3, priority=1, fork_of=source)
        if source == "waits":
            engine.submit(source, PROMPT, 3)
        engine.finish()
        assert engine.ends["fork"].reason is FinishReason.LENGTH
        assert not any(plan.copies for plan in engine.runner.plans)

    @pytest.mark.parametrize("depth", [1, 2])
    @pytest.mark.parametrize("early", [False, True])
    def test_a_copy_of_a_step_that_fails_is_not_relied_on(self, depth: int, early: bool) -> None:
        engine = CoreHarness(depth=depth)
        sample(engine, 3, PROMPT)
        (engine.runner.fail_starts if early else engine.runner.fail_steps).add(1 + depth)
        engine.finish()
        assert engine.runner.plans[depth].copies
        assert engine.ends["s1"].reason is FinishReason.ERROR
        engine.submit("again", PROMPT, 6, fork_of="s0")
        engine.finish()

    def test_a_block_is_not_given_away_while_a_copy_of_it_is_in_flight(self) -> None:
        """Depth 2: the source has all its tokens when the fork is planned, and ends before that
        step does."""
        engine = CoreHarness(depth=2, prefix_caching=False)
        engine.submit("s0", PROMPT, 2)
        engine.submit("s1", PROMPT, 4, fork_of="s0")
        engine.step()
        engine.step()
        assert set(engine.ends) == {"s0"}
        assert engine.runner.plans[2].copies
        assert [row.seq for row in engine.runner.plans[2].rows] == [2]
        engine.submit("other", list(range(20)), 2)
        engine.finish()

    def test_a_prefix_that_is_cached_further_is_preferred(self) -> None:
        engine = CoreHarness()
        engine.submit("warm", [*PROMPT, 1, 2, 3], 1)
        engine.finish()
        engine.submit("a", [*PROMPT[:6], 9, 9], 8)
        engine.step()
        engine.submit("b", [*PROMPT, 1, 2, 5], 2, fork_of="a")
        engine.step()
        assert engine.runner.plans[-1].copies == ()
        engine.finish()
        assert engine.ends["b"].usage.cached_tokens == 12

    def test_a_fork_needs_only_what_it_does_not_share(self) -> None:
        """8 blocks of 4, 6 held by a source of 22 tokens: its copy needs one, a stranger six."""
        engine = CoreHarness(num_blocks=8, prefix_caching=False)
        engine.submit("a", list(range(22)), 2)
        engine.step()
        engine.submit("b", list(range(22)), 2, fork_of="a")
        engine.step()
        assert engine.records[-1].admitted == ("b",)
        engine.finish()
        engine.submit("c", list(range(22)), 2)
        engine.step()
        engine.submit("d", list(range(22)), 2)
        engine.step()
        assert in_words(engine.core.head_wait) == "no blocks: it needs 6, 2 of 8 are free for it"
        engine.finish()


class TestPins:
    def test_a_system_prompt_is_never_evicted(self) -> None:
        engine = CoreHarness(num_blocks=16, max_model_len=32)
        engine.core.pins.pin("system", PROMPT)
        for i in range(30):
            if i % 10 == 0:
                engine.submit(f"chat{i}", [*PROMPT, i], 3)
            engine.submit(f"r{i}", [(i * 37 + j) % 1000 for j in range(20)], 8)
            engine.step()
        engine.finish()
        assert engine.snapshot().totals.evictions > 50
        assert [engine.ends[f"chat{i}"].usage.cached_tokens for i in (0, 10, 20)] == [0, 8, 8]
        view = engine.snapshot().blocks
        assert (view.pinned, states_of(view).count("p")) == (2, 2)
        (pin,) = engine.snapshot().pins
        assert (pin.name, pin.tokens, pin.blocks, pin.computed, pin.error) == (
            "system",
            10,
            2,
            2,
            "",
        )
        engine.core.pins.unpin("system")
        assert engine.snapshot().pins == ()
        assert engine.snapshot().blocks.pinned == 0
        for i in range(6):
            engine.submit(f"late{i}", [(i * 41 + j) % 1000 for j in range(20)], 8)
        engine.finish()
        engine.submit("chat", [*PROMPT, 1], 3)
        engine.finish()
        assert engine.ends["chat"].usage.cached_tokens == 0

    def test_one_that_leaves_no_room_says_so(self) -> None:
        engine = CoreHarness(num_blocks=10, max_model_len=32)
        engine.core.pins.pin("system", list(range(12)))
        (pin,) = engine.snapshot().pins
        refusal = (
            "pinned prefixes would take 3 blocks; the pool has 2 beyond one sequence of the "
            "model's length"
        )
        assert pin == PinView("system", tokens=12, blocks=0, computed=0, error=refusal)

    def test_the_longest_sequence_fits_beside_all_that_may_be_pinned(self) -> None:
        engine = CoreHarness(num_blocks=10, max_model_len=32)
        engine.core.pins.pin("system", PROMPT)
        engine.submit("a", PROMPT, 1)
        engine.finish()
        assert engine.pool.num_available == 8
        engine.submit("longest", list(range(500, 531)), 1)
        engine.submit("grows", list(range(300, 310)), 22)
        engine.finish()
        for name in ("longest", "grows"):
            assert engine.ends[name].reason is FinishReason.LENGTH


def test_a_fork_with_another_prompt_does_not_wait_for_its_source() -> None:
    engine = CoreHarness(max_num_batched_tokens=8, prefill_chunk=4)
    engine.submit("source", list(range(30)), 2)
    engine.step()
    engine.submit("other", [90, 91, 92], 2, fork_of="source")
    engine.step()
    assert engine.records[-1].admitted == ("other",)
    engine.finish()


def test_a_pin_that_is_refused_leaves_the_one_before() -> None:
    engine = CoreHarness()
    engine.core.pins.pin("system", PROMPT)
    (before,) = engine.snapshot().pins
    assert before.blocks > 0
    engine.core.pins.pin("system", [1, 2, 3])
    (pin,) = engine.snapshot().pins
    assert pin == replace(before, error="it is shorter than one block, 4 tokens")


def test_a_pin_that_keeps_nothing_says_why() -> None:
    engine = CoreHarness()
    engine.core.pins.pin("short", [1, 2, 3])
    engine.core.pins.pin("good", PROMPT)
    engine.core.pins.refuse("unread", "it cannot be read: no template")
    errors = {pin.name: pin.error for pin in engine.snapshot().pins}
    assert errors == {
        "short": "it is shorter than one block, 4 tokens",
        "good": "",
        "unread": "it cannot be read: no template",
    }
    engine.core.change_knobs({"prefix_caching": False}, "test")
    assert {pin.name: pin.error for pin in engine.snapshot().pins}["good"] == (
        "prefix_caching is off"
    )
