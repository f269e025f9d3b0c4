"""The fifteen traps of a continuous-batching engine with a paged cache, as far as they are the
core's. Numbers in the names; incomplete characters (11), stop strings in text (12), the sampler
(13) and the size of buffers (14) are tested where those live.
"""

from __future__ import annotations

import hashlib
from array import array

import pytest

from engine.admission import MAX_PRIORITY
from engine.cache.manager import KVCache
from engine.cache.prefix import block_hash, root_hash
from engine.config import EngineConfig
from engine.errors import InvalidConfigError
from engine.knobs import Knobs
from engine.plan import Row, StepPlan
from engine.request import FinishReason, RequestState, SamplingParams
from engine.scheduling.scheduler import Scheduler
from engine.telemetry import BlockChange
from tests.support.harness import CoreHarness, make_request
from tests.support.scripted_runner import reference

PROMPT = list(range(100, 108))


def row_of(plan: StepPlan, seq: int) -> Row:
    return next(row for row in plan.rows if row.seq == seq)


def seqs(plan: StepPlan) -> list[int]:
    return [row.seq for row in plan.rows]


class TestTrap1FullPrefixHit:
    """A prompt that is cached whole must still run one token, to give logits."""

    @pytest.mark.parametrize(
        ("length", "cached"), [(1, 0), (4, 0), (5, 4), (7, 4), (8, 4), (9, 8), (12, 8)]
    )
    @pytest.mark.parametrize("depth", [1, 2])
    def test_the_hit_ends_before_the_last_token(self, length: int, cached: int, depth: int) -> None:
        prompt = list(range(200, 200 + length))
        engine = CoreHarness(depth=depth)
        engine.submit("first", prompt, 3)
        engine.finish()
        engine.submit("again", prompt, 3)
        engine.step()
        row = row_of(engine.runner.plans[-1], 2) if depth == 1 else engine.runner.plans[-2].rows[0]
        assert (row.start, row.count, row.samples) == (cached, length - cached, True)
        engine.finish()
        assert engine.ends["again"].usage.cached_tokens == cached
        assert engine.tokens["again"] == engine.tokens["first"]

    def test_also_after_a_preemption(self) -> None:
        """Prompt and outputs are a whole number of blocks, all of them findable."""
        engine = CoreHarness(block_size=2)
        engine.submit("a", [1, 2, 3], 9)
        engine.step()  # 3 tokens computed, the 4th known
        engine.step()
        request = engine.core._requests["a"]
        assert (request.num_known_tokens, request.num_computed_tokens) == (5, 4)
        engine.step()
        engine.core._scheduler.preempt([request], engine.core.ledger.knobs)
        engine.step()
        # 6 tokens known, 5 were computed, 2 full blocks were published.
        assert row_of(engine.runner.plans[-1], 1).start == 4
        engine.finish()


class TestTrap2TouchBeforeGiving:
    """Hits are held before anything is given; tables are let go from the tail."""

    def test_a_hit_is_not_evicted_by_its_own_request(self) -> None:
        engine = CoreHarness(num_blocks=6)
        engine.submit("first", list(range(20)), 1)
        engine.finish()
        assert (engine.pool.num_free, engine.pool.num_cached) == (1, 5)
        # Hits the oldest of the cached blocks and needs every other block of the pool.
        engine.submit("second", [*range(12), *range(500, 510)], 2)
        engine.step()
        events = engine.records[-1].blocks
        hit = engine.runner.plans[-1].new[0].block_ids
        assert hit == events.blocks(BlockChange.SHARED)
        assert len(hit) == 3
        assert set(hit).isdisjoint(events.blocks(BlockChange.EVICTED))
        changes = [change for change, _block, _seq in events.log]
        assert changes[:3] == [BlockChange.SHARED] * 3
        engine.finish()
        assert engine.ends["second"].reason is FinishReason.LENGTH

    def test_a_hit_does_not_count_as_free(self) -> None:
        """Cached blocks that the request itself hits cannot be given to it as well."""
        engine = CoreHarness(num_blocks=6, max_model_len=24)
        engine.submit("first", list(range(20)), 1)
        engine.finish()
        engine.submit("holder", list(range(600, 610)), 6)
        engine.step()
        assert engine.pool.num_available == 3
        # 5 blocks, 2 or 3 of them hit: what is left does not do beside the holder.
        engine.submit("second", [*range(12), *range(500, 508)], 2)
        engine.step()
        assert len(engine.runner.plans[-1].new) == 0
        assert "no blocks" in engine.snapshot().waiting_reason
        engine.finish()

    def test_the_tail_is_evicted_first(self) -> None:
        engine = CoreHarness(num_blocks=6)
        engine.submit("first", list(range(20)), 1)
        engine.finish()
        table = row_of(engine.runner.plans[0], 1).new_blocks
        engine.submit("second", list(range(500, 511)), 1)  # 3 blocks, 1 of them free
        engine.step()
        evicted = engine.records[-1].blocks.blocks(BlockChange.EVICTED)
        assert evicted == (table[4], table[3])
        engine.finish()
        engine.submit("third", list(range(20)), 1)
        engine.finish()
        assert engine.ends["third"].usage.cached_tokens == 12


class TestTrap3PublishAfterTheForwardPass:
    """Only full blocks are findable, and only once the pass that filled them has run."""

    @pytest.mark.parametrize("depth", [1, 2])
    def test_twins_of_one_step_do_not_find_each_other(self, depth: int) -> None:
        engine = CoreHarness(depth=depth)
        engine.submit("a", PROMPT, 2)
        engine.submit("b", PROMPT, 2)
        engine.step()
        assert [new.block_ids for new in engine.runner.plans[0].new] == [(), ()]
        engine.finish()
        assert engine.tokens["a"] == engine.tokens["b"]

    def test_not_found_while_the_step_is_in_flight(self) -> None:
        engine = CoreHarness(depth=2, max_num_batched_tokens=10)
        engine.submit("a", PROMPT, 6)
        engine.submit("b", [*PROMPT, 1, 2], 2)  # 2 tokens in the first step, 8 left
        engine.step()
        assert len(engine.runner.plans) == 2
        first, second = engine.runner.plans
        assert first.new[1].block_ids == ()
        assert row_of(second, 2).start == 2
        engine.submit("c", PROMPT, 2)
        engine.step()
        assert engine.runner.plans[2].new[0].block_ids == row_of(first, 1).new_blocks[:1]
        engine.finish()

    def test_a_failed_step_leaves_nothing_to_find(self) -> None:
        engine = CoreHarness()
        engine.runner.fail_steps = {1}
        engine.submit("a", PROMPT, 2)
        engine.finish()
        assert engine.ends["a"].reason is FinishReason.ERROR
        assert engine.pool.num_cached == 0
        engine.submit("b", PROMPT, 2)
        engine.finish()
        assert engine.ends["b"].usage.cached_tokens == 0

    def test_a_block_is_not_found_until_it_is_full(self) -> None:
        engine = CoreHarness()
        engine.submit("a", list(range(7)), 1)
        engine.finish()
        assert engine.pool.num_cached == 1
        engine.submit("b", list(range(10)), 1)
        engine.finish()
        assert engine.ends["b"].usage.cached_tokens == 4

    def test_nothing_is_kept_while_prefix_caching_is_off(self) -> None:
        engine = CoreHarness(prefix_caching=False)
        engine.submit("a", PROMPT, 5)
        engine.finish()
        assert engine.pool.num_cached == 0
        engine.core.change_knobs({"prefix_caching": True}, "test")
        engine.submit("b", PROMPT, 5)
        engine.finish()
        assert engine.ends["b"].usage.cached_tokens == 0
        assert engine.pool.num_cached == 3

    def test_a_chunk_is_found_by_the_next_request(self) -> None:
        """What is published is what was computed, not what is known."""
        engine = CoreHarness(max_num_batched_tokens=10)
        engine.submit("a", list(range(30)), 1)
        engine.step()
        request = engine.core._requests["a"]
        assert (request.num_computed_tokens, request.num_published) == (10, 2)


class TestTrap4ChainedHash:
    """A block is known by a cryptographic hash of all tokens up to its end, rooted in the model."""

    def test_it_is_sha_256_over_parent_and_ids(self) -> None:
        root = root_hash("model")
        assert root == hashlib.sha256(b"model").digest()
        ids = [1, 70_000, 2**32 - 1]
        expected = hashlib.sha256(root + array("I", ids).tobytes()).digest()
        assert array("I").itemsize == 4
        assert block_hash(root, ids) == expected

    def test_equal_blocks_behind_other_tokens_are_not_equal(self) -> None:
        engine = CoreHarness()
        engine.submit("a", [1, 1, 1, 1, 5, 6, 7, 8, 9], 1)
        engine.finish()
        engine.submit("b", [2, 2, 2, 2, 5, 6, 7, 8, 9], 1)
        engine.submit("c", [5, 6, 7, 8, 9], 1)
        engine.finish()
        assert engine.ends["b"].usage.cached_tokens == 0
        assert engine.ends["c"].usage.cached_tokens == 0

    def test_another_model_has_other_hashes(self) -> None:
        config = EngineConfig(num_blocks=4, block_size=2, max_model_len=8, max_num_seqs=1)
        hashes = []
        for key in ("model@1:float32", "model@1:bfloat16"):
            request = make_request(1, [1, 2, 3])
            KVCache(config, key).match(request)
            hashes.append(request.block_hashes)
        assert len(hashes[0]) == 1
        assert hashes[0] != hashes[1]


class TestTrap5NeverFits:
    """What cannot be served is refused at submit, with the numbers."""

    @pytest.mark.parametrize(
        ("prompt", "max_tokens", "min_tokens", "param", "numbers"),
        [
            (0, 1, 0, "prompt", ["empty"]),
            (48, 1, 0, "prompt", ["48", "47", "context 64", "pool 48"]),
            (500, None, 0, "prompt", ["500", "47"]),
            (40, 9, 0, "max_tokens", ["9", "40", "at most 8"]),
            (40, None, 9, "min_tokens", ["9", "40", "at most 8"]),
        ],
    )
    def test_refused_with_the_numbers(
        self, prompt: int, max_tokens: int | None, min_tokens: int, param: str, numbers: list[str]
    ) -> None:
        engine = CoreHarness(num_blocks=12, max_model_len=64)
        engine.submit("a", list(range(prompt)), max_tokens, min_tokens=min_tokens)
        engine.submit("b", PROMPT, 2)
        engine.finish()
        end = engine.ends["a"]
        assert end.reason is FinishReason.ERROR
        assert end.error is not None
        assert (end.error.type, end.error.param) == ("invalid_request_error", param)
        for number in numbers:
            assert number in end.error.message
        assert engine.ends["b"].reason is FinishReason.LENGTH

    @pytest.mark.parametrize(("num_blocks", "max_model_len"), [(12, 64), (32, 48)])
    @pytest.mark.parametrize("prompt", [1, 40, 47])
    @pytest.mark.parametrize("depth", [1, 2])
    def test_what_just_fits_is_served_to_the_end(
        self, num_blocks: int, max_model_len: int, prompt: int, depth: int
    ) -> None:
        engine = CoreHarness(num_blocks=num_blocks, max_model_len=max_model_len, depth=depth)
        engine.submit("a", list(range(prompt)), None)
        engine.submit("b", list(range(300, 300 + prompt)), 48 - prompt)
        engine.finish()
        for name in "ab":
            assert engine.ends[name].reason is FinishReason.LENGTH
            assert len(engine.tokens[name]) == 48 - prompt

    @pytest.mark.parametrize(
        ("options", "param"),
        [
            ({"deadline": float("nan")}, "deadline"),
            ({"deadline": float("inf")}, "deadline"),
            ({"deadline": 0}, "deadline"),
            ({"deadline": -1.0}, "deadline"),
            ({"deadline": 10**400}, "deadline"),
            ({"deadline": "soon"}, "deadline"),
            ({"priority": "high"}, "priority"),
            ({"priority": 1.5}, "priority"),
            ({"priority": True}, "priority"),
            ({"priority": 10**400}, "priority"),
            ({"priority": -MAX_PRIORITY - 1}, "priority"),
        ],
    )
    def test_a_place_in_the_queue_that_makes_no_sense(
        self, options: dict[str, object], param: str
    ) -> None:
        engine = CoreHarness()
        engine.submit("a", PROMPT, 2, **options)
        engine.submit("b", PROMPT, 2, deadline=5.0)
        engine.finish()
        error = engine.ends["a"].error
        assert error is not None
        assert error.param == param
        assert repr(options[param]) in error.message
        assert engine.ends["b"].reason is FinishReason.LENGTH


class TestTrap6TwoHalfPrompts:
    """Two prompts that do not fit together must not each hold half of the pool."""

    @pytest.mark.parametrize("depth", [1, 2])
    def test_the_second_waits_for_the_whole_of_its_need(self, depth: int) -> None:
        engine = CoreHarness(num_blocks=8, depth=depth, prefill_chunk=4, prefix_caching=False)
        engine.submit("a", list(range(20)), 4)
        engine.submit("b", list(range(100, 120)), 4)
        engine.step()
        assert all(new.seq == 1 for plan in engine.runner.plans for new in plan.new)
        assert engine.pool.num_available >= 5  # enough for b's chunk, and for b alone
        assert engine.snapshot().waiting_reason.startswith("no blocks: it needs 5,")
        engine.finish()
        assert engine.snapshot().totals.preemptions == 0

    def test_promised_blocks_count_once_given(self) -> None:
        """What a half-computed prompt got already is not promised any more."""
        engine = CoreHarness(num_blocks=9, prefill_chunk=4, prefix_caching=False)
        engine.submit("a", list(range(16)), 1)
        engine.submit("b", list(range(100, 120)), 1)
        engine.step()
        assert [new.seq for new in engine.runner.plans[0].new] == [1, 2]
        engine.finish()


class TestTrap7Preemption:
    """The victim goes to the head of its priority, and the step that took its blocks is fair."""

    @pytest.mark.parametrize("depth", [1, 2])
    def test_the_victim_waits_at_the_head(self, depth: int) -> None:
        engine = CoreHarness(num_blocks=6, max_num_seqs=2, depth=depth, prefix_caching=False)
        engine.submit("a", list(range(10)), 14)
        engine.submit("b", list(range(100, 110)), 6)
        engine.submit("c", list(range(200, 204)), 2)
        while not engine.snapshot().totals.preemptions:
            engine.step()
        views = {view.request_id: view for view in engine.snapshot().requests}
        assert views["b"].state is RequestState.PREEMPTED
        waiting = [v.request_id for v in engine.snapshot().requests if v.wait_reason]
        assert waiting == ["b", "c"]
        engine.finish()
        order = sorted(engine.ends, key=lambda name: engine.ends[name].timings.e2e or 0)
        assert order[0] == "a"

    def test_no_admission_in_a_step_that_preempted(self) -> None:
        """Slots and blocks for the small one are there, but not at the victim's cost."""
        engine = CoreHarness(num_blocks=8, prefix_caching=False)
        engine.submit("a", list(range(12)), 20)
        engine.submit("b", list(range(100, 112)), 20)
        engine.step()
        while engine.pool.num_available:
            engine.step()
        engine.submit("late", [7], 1)
        while not engine.records[-1].preempted:
            engine.step()
        assert engine.records[-1].preempted == ("b",)
        assert engine.records[-1].admitted == ()
        assert engine.records[-1].waiting_reason == "the pool just ran out of blocks"
        engine.finish()

    @pytest.mark.parametrize(("priority", "victim"), [(0, "b"), (1, "a")])
    def test_the_lowest_priority_goes_then_the_latest(self, priority: int, victim: str) -> None:
        engine = CoreHarness(num_blocks=8, prefix_caching=False)
        engine.submit("a", list(range(12)), 20)
        engine.submit("b", list(range(100, 112)), 20, priority=priority)
        engine.step()
        while not engine.records[-1].preempted:
            engine.step()
        assert engine.records[-1].preempted == (victim,)
        engine.finish()
        assert engine.snapshot().totals.preemptions >= 1

    def test_the_victim_keeps_its_priority(self) -> None:
        engine = CoreHarness(num_blocks=6, prefix_caching=False)
        engine.submit("a", list(range(10)), 14, priority=2)
        engine.submit("b", list(range(100, 110)), 6, priority=1)
        engine.step()
        engine.submit("low", [1, 2], 2)
        engine.submit("high", [1, 2], 2, priority=3)
        engine.core.change_knobs({"max_num_seqs": 2}, "test")
        while not engine.snapshot().totals.preemptions:
            engine.step()
        waiting = [v.request_id for v in engine.snapshot().requests if v.wait_reason]
        assert waiting == ["high", "b", "low"]
        engine.finish()

    def test_a_planned_victim_is_not_in_the_plan(self) -> None:
        engine = CoreHarness(num_blocks=7, prefix_caching=False)
        engine.submit("low", list(range(9)), 12)
        engine.submit("high", list(range(100, 112)), 8, priority=1)
        engine.step()  # 3 + 3 blocks, 1 free
        engine.step()  # high needs a 4th for its 13th token
        assert engine.pool.num_available == 0
        for _ in range(3):
            engine.step()
        # low, planned first, has room for its 12th token; high needs a block for its 17th.
        assert engine.records[-1].preempted == ("low",)
        assert seqs(engine.runner.plans[-1]) == [2]
        assert engine.records[-1].decode_tokens == 1
        engine.finish()

    @pytest.mark.parametrize("watermark", [0.0, 0.25, 0.5])
    def test_the_watermark_is_kept_at_admission(self, watermark: float) -> None:
        engine = CoreHarness(num_blocks=16, watermark=watermark, prefix_caching=False)
        for i in range(8):
            engine.submit(f"r{i}", list(range(8)), 1)
        engine.step()
        kept = int(16 * watermark)
        admitted = len(engine.runner.plans[0].new)
        assert admitted == (16 - kept) // 2
        engine.finish()

    def test_the_watermark_does_not_keep_out_the_first(self) -> None:
        engine = CoreHarness(num_blocks=16, max_model_len=64, watermark=0.5)
        engine.submit("big", list(range(60)), 4)
        engine.finish()
        assert engine.ends["big"].reason is FinishReason.LENGTH

    def test_a_lone_sequence_without_blocks_ends_with_an_error(self) -> None:
        """Admission rules it out; were it wrong, the sequence must not preempt itself for ever."""
        engine = CoreHarness(num_blocks=3, max_model_len=12)
        engine.submit("a", list(range(6)), None)
        engine.core._requests["a"].max_output_tokens = 50
        engine.submit("b", list(range(50, 56)), 2)  # waits for the second of its blocks
        engine.run()
        error = engine.ends["a"].error
        assert error is not None
        assert error.type == "engine_error"
        assert "3 blocks" in error.message
        assert engine.ends["b"].reason is FinishReason.LENGTH
        assert engine.pool.num_used == 0


class TestTrap8Resume:
    """A resumed sequence recomputes what it has, and goes on as if nothing had happened."""

    @pytest.mark.parametrize("depth", [1, 2])
    @pytest.mark.parametrize("prefix_caching", [False, True])
    def test_nothing_is_emitted_or_counted_twice(self, depth: int, prefix_caching: bool) -> None:
        engine = CoreHarness(num_blocks=8, depth=depth, prefix_caching=prefix_caching)
        engine.submit("warm", list(range(100, 108)), 1)
        engine.finish()
        engine.submit("a", list(range(12)), 16)
        engine.submit("b", list(range(100, 112)), 16, temperature=1.0, seed=3)
        engine.finish()
        assert engine.snapshot().totals.preemptions >= 1
        assert engine.tokens["b"] == reference(list(range(100, 112)), 16, seed=3)
        assert engine.ends["b"].usage.cached_tokens == (8 if prefix_caching else 0)
        resumed = [(plan, new) for plan in engine.runner.plans for new in plan.new if new.seq == 3][
            1:
        ]
        assert resumed
        for plan, new in resumed:
            outputs = len(new.token_ids) - new.num_prompt_tokens
            assert new.num_prompt_tokens == 12
            assert list(new.token_ids[12:]) == engine.tokens["b"][:outputs]
            assert outputs > 0
            assert new.seed == 3
            record = engine.records[plan.step - 1]
            assert (record.prefix_queried_tokens, record.prefix_hit_tokens) == (0, 0)
        totals = engine.snapshot().totals
        assert totals.prefix_queried_tokens == totals.prompt_tokens == 8 + 12 + 12
        assert totals.output_tokens == 1 + 16 + 16

    @pytest.mark.parametrize("depth", [1, 2])
    def test_recomputed_in_chunks_that_do_not_sample(self, depth: int) -> None:
        engine = CoreHarness(num_blocks=8, depth=depth, prefill_chunk=5, prefix_caching=False)
        engine.submit("a", list(range(12)), 16)
        engine.submit("b", list(range(100, 112)), 16)
        engine.finish()
        again = next(
            plan.step for plan in engine.runner.plans if 2 in [new.seq for new in plan.new][:1]
        )
        rows = [
            row
            for plan in engine.runner.plans
            if plan.step >= again
            for row in plan.rows
            if row.seq == 2
        ]
        chunks = [row for row in rows if row.prefill]
        assert len(chunks) >= 3
        assert [row.samples for row in chunks[:2]] == [False, False]

    def test_preempted_while_its_token_is_in_flight(self) -> None:
        """Depth 2: the token arrives while the request waits, and is its own."""
        engine = CoreHarness(num_blocks=64, depth=2)
        engine.submit("a", PROMPT, 6)
        engine.step()
        request = engine.core._requests["a"]
        assert request.num_in_flight == 1
        engine.core._scheduler.preempt([request], engine.core.ledger.knobs)
        assert request.state is RequestState.PREEMPTED
        engine.core._plan()
        assert engine.core._scheduler.waiting_reason == "its last step is still running"
        before = len(engine.tokens["a"])
        engine.step()
        assert len(engine.tokens["a"]) == before + 1
        engine.finish()
        assert len(engine.tokens["a"]) == 6

    def test_preempted_with_its_last_token_in_flight(self) -> None:
        engine = CoreHarness(depth=2)
        engine.submit("a", PROMPT, 2)
        engine.step()
        request = engine.core._requests["a"]
        engine.core._scheduler.preempt([request], engine.core.ledger.knobs)
        engine.finish()
        assert engine.ends["a"].reason is FinishReason.LENGTH


class TestTrap9Abort:
    """One way to end, from anywhere, once."""

    @pytest.mark.parametrize("depth", [1, 2])
    @pytest.mark.parametrize("steps", range(9))
    def test_at_any_moment(self, depth: int, steps: int) -> None:
        engine = CoreHarness(depth=depth, num_blocks=8, max_num_batched_tokens=8)
        engine.submit("a", list(range(12)), 8)
        engine.submit("b", list(range(100, 110)), 8)
        for _ in range(steps):
            engine.step()
        for _ in range(2):
            engine.core.abort("b")
            engine.core.check()
        engine.core.abort("nobody")
        assert not engine.core.idle
        engine.step()
        assert engine.ends["b"].reason is FinishReason.ABORT
        engine.core.abort("b")
        engine.finish()
        assert engine.ends["b"].reason is FinishReason.ABORT
        assert engine.ends["a"].reason is FinishReason.LENGTH
        assert engine.snapshot().totals.aborted == 1

    def test_blocks_are_let_go_as_at_the_end(self) -> None:
        """What was published stays findable, tail to be evicted first."""
        states = []
        for abort in (False, True):
            engine = CoreHarness(num_blocks=8)
            engine.submit("a", list(range(10)), 20 if abort else 3)
            for _ in range(3):
                engine.step()
            engine.core.abort("a")
            engine.finish()
            states.append((list(engine.pool._cached), engine.pool._free))
        assert engine.ends["a"].reason is FinishReason.ABORT
        assert states[0] == states[1]
        assert len(states[0][0]) == 3

    def test_a_preempted_request(self) -> None:
        engine = CoreHarness(num_blocks=6, prefix_caching=False)
        engine.submit("a", list(range(10)), 14)
        engine.submit("b", list(range(100, 110)), 6)
        while not engine.snapshot().totals.preemptions:
            engine.step()
        engine.core.abort("b")
        engine.finish()
        assert engine.ends["b"].reason is FinishReason.ABORT
        assert engine.ends["b"].token_ids == (*range(100, 110), *engine.tokens["b"])

    def test_one_that_ends_in_the_same_step(self) -> None:
        """Depth 2: the aborted request's tokens still in flight are dropped."""
        engine = CoreHarness(depth=2)
        engine.submit("a", PROMPT, 3)
        engine.step()
        engine.core.abort("a")
        engine.finish()
        assert engine.ends["a"].usage.completion_tokens == len(engine.tokens["a"]) == 1
        assert engine.snapshot().totals.output_tokens == 1


class TestTrap10BlocksInFlight:
    """Blocks freed under a step in flight wait for that step."""

    def test_they_are_not_given_to_the_next_plan(self) -> None:
        engine = CoreHarness(depth=2, num_blocks=4, max_model_len=16, prefix_caching=False)
        engine.submit("a", list(range(12)), 4)
        engine.step()  # step 1 is in, step 2 in flight; a holds all 4 blocks
        assert len(engine.core._in_flight) == 1
        engine.core.abort("a")
        assert engine.pool.num_used == 4
        engine.submit("b", list(range(100, 112)), 4)
        assert engine.core._plan() is False
        assert (
            engine.core._scheduler.waiting_reason == "no blocks: it needs 3, 0 of 4 are free for it"
        )
        engine.step()
        assert engine.pool.num_used == 0
        assert not engine.core.idle
        engine.step()
        assert seqs(engine.runner.plans[-1]) == [2]
        engine.finish()

    def test_preempting_once_is_enough(self) -> None:
        """While blocks are on their way back, nobody else loses any."""
        engine = CoreHarness(depth=2, num_blocks=9, prefix_caching=False)
        for i, name in enumerate("abc"):
            engine.submit(name, list(range(100 * i, 100 * i + 11)), 10)
        while not engine.snapshot().totals.preemptions:
            engine.step()
        assert engine.snapshot().totals.preemptions == 1
        engine.finish()

    def test_a_shared_block_stays_with_its_other_holder(self) -> None:
        engine = CoreHarness(depth=2)
        engine.submit("warm", PROMPT, 1)
        engine.finish()
        engine.submit("a", PROMPT, 8)
        engine.submit("b", PROMPT, 8)
        engine.step()
        assert engine.pool.num_shared == 1
        engine.core.abort("a")
        assert engine.pool.num_shared == 1
        engine.step()
        assert engine.pool.num_shared == 0
        engine.finish()
        assert engine.tokens["b"] == reference(PROMPT, 8)


class TestTrap12StopsAndMinTokens:
    """The core's part: cut at the token that text named, and no end before `min_tokens`."""

    @pytest.mark.parametrize("depth", [1, 2])
    @pytest.mark.parametrize("at", [1, 3, 5])
    def test_tokens_after_the_stop_are_dropped(self, depth: int, at: int) -> None:
        engine = CoreHarness(depth=depth)
        engine.submit("a", PROMPT, 50)
        while len(engine.tokens.get("a", ())) < 5:
            engine.step()
        engine.stop("a", at)
        engine.stop("a", at)
        engine.finish()
        end = engine.ends["a"]
        assert end.reason is FinishReason.STOP
        assert end.usage.completion_tokens == at
        assert end.token_ids == (*PROMPT, *reference(PROMPT, at))

    def test_a_stop_for_one_that_ended_is_ignored(self) -> None:
        engine = CoreHarness()
        engine.submit("a", PROMPT, 2)
        engine.finish()
        engine.stop("a", 1)
        assert engine.core.idle
        engine.finish()
        assert engine.ends["a"].reason is FinishReason.LENGTH

    def test_a_preempted_request_can_be_stopped(self) -> None:
        engine = CoreHarness()
        engine.submit("a", PROMPT, 20)
        for _ in range(4):
            engine.step()
        engine.core._scheduler.preempt([engine.core._requests["a"]], engine.core.ledger.knobs)
        engine.stop("a", 2)
        engine.finish()
        assert engine.ends["a"].usage.completion_tokens == 2

    @pytest.mark.parametrize("depth", [1, 2])
    @pytest.mark.parametrize("which", ["eos", "stop_token_ids"])
    def test_no_end_before_min_tokens(self, depth: int, which: str) -> None:
        third = reference(PROMPT, 3)[2]
        ends = {third}
        engine = CoreHarness(depth=depth, eos=ends if which == "eos" else ())
        options: dict[str, object] = {"ignore_eos": which != "eos"}
        if which != "eos":
            options["stop_token_ids"] = tuple(ends)
        engine.submit("free", PROMPT, 12, **options)
        engine.submit("bound", PROMPT, 12, min_tokens=6, **options)
        engine.submit("just", PROMPT, 12, min_tokens=2, **options)
        engine.finish()
        assert engine.runner.plans[0].new[1].suppressed == tuple(ends)
        for name in ("free", "just"):
            assert engine.ends[name].reason is FinishReason.STOP
            assert engine.tokens[name] == reference(PROMPT, 3)
        assert third not in engine.tokens["bound"][:6]
        assert engine.ends["bound"].usage.completion_tokens >= 6

    def test_eos_can_be_ignored(self) -> None:
        third = reference(PROMPT, 3)[2]
        engine = CoreHarness(eos={third})
        engine.submit("a", PROMPT, 6, ignore_eos=True, stop_token_ids=(5000,))
        engine.finish()
        assert engine.runner.plans[0].new[0].suppressed == (5000,)
        assert engine.tokens["a"] == reference(PROMPT, 6)

    def test_the_last_allowed_token_may_be_a_stop(self) -> None:
        third = reference(PROMPT, 3)[2]
        engine = CoreHarness(eos={third})
        engine.submit("a", PROMPT, 3, ignore_eos=False)
        engine.finish()
        assert engine.ends["a"].reason is FinishReason.STOP


class TestTrap13Seeds:
    """Randomness is (seed, position): one seed for a request's whole life, none of it shared."""

    def test_an_unseeded_request_draws_once(self) -> None:
        engine = CoreHarness(num_blocks=64)
        for name in "ab":
            engine.core.submit(name, PROMPT, SamplingParams(max_tokens=6, ignore_eos=True))
        engine.core.step()
        for request in engine.core._requests.values():
            seed = request.seed
            assert 0 <= seed < 2**64
            engine.core._scheduler.preempt([request], engine.core.ledger.knobs)
        engine.core.step()
        first = {new.seq: new.seed for new in engine.runner.plans[0].new}
        again = {new.seq: new.seed for new in engine.runner.plans[1].new}
        assert first == again
        assert first[1] != first[2]

    def test_neighbours_do_not_change_the_tokens(self) -> None:
        alone = CoreHarness()
        alone.submit("x", PROMPT, 12, temperature=1.0, seed=9)
        alone.finish()
        crowd = CoreHarness(num_blocks=12, max_num_batched_tokens=16, max_num_seqs=4)
        for i in range(4):
            crowd.submit(f"n{i}", [i, *PROMPT], 9, temperature=1.0, seed=i)
        crowd.submit("x", PROMPT, 12, temperature=1.0, seed=9)
        crowd.finish()
        assert crowd.tokens["x"] == alone.tokens["x"]
        assert crowd.snapshot().totals.preemptions > 0


class TestTrap14LargestStep:
    """Memory is sized for the envelope, so no knob leads out of it."""

    def test_a_budget_below_one_token_a_sequence_is_refused(self) -> None:
        with pytest.raises(InvalidConfigError, match="max_num_seqs") as caught:
            EngineConfig(num_blocks=4, max_model_len=8, max_num_seqs=9, max_num_batched_tokens=8)
        assert caught.value.param == "max_num_batched_tokens"

    def test_the_largest_step_is_full_and_no_larger(self) -> None:
        engine = CoreHarness(max_num_seqs=4, max_num_batched_tokens=16)
        for i in range(6):
            engine.submit(f"r{i}", list(range(100 * i, 100 * i + 6)), 3)
        engine.finish()
        assert max(plan.num_tokens for plan in engine.runner.plans) == 16
        assert max(len(plan.rows) for plan in engine.runner.plans) == 4
        for knob, value in (("max_num_seqs", 5), ("max_num_batched_tokens", 17)):
            with pytest.raises(InvalidConfigError):
                engine.core.change_knobs({knob: value}, "test")


class TestTrap15FrozenHead:
    """Who waits says why."""

    def reasons(self, engine: CoreHarness) -> dict[str, str]:
        views = engine.snapshot().requests
        return {view.request_id: view.wait_reason for view in views if view.wait_reason}

    def test_before_the_first_step(self) -> None:
        engine = CoreHarness()
        engine.submit("a", PROMPT)
        engine.submit("b", PROMPT)
        assert self.reasons(engine) == {"a": "it is next", "b": "behind 1"}

    def test_no_slot(self) -> None:
        engine = CoreHarness(max_num_seqs=1)
        for name in "abc":
            engine.submit(name, PROMPT, 8)
        engine.step()
        reason = "no slot: 1 of 1 are taken"
        assert self.reasons(engine) == {
            "b": reason,
            "c": f"behind 1: {reason}",
        }

    def test_no_blocks(self) -> None:
        engine = CoreHarness(num_blocks=4, max_model_len=16)
        engine.submit("a", list(range(9)), 7)
        engine.submit("b", list(range(100, 109)), 2)
        engine.step()
        assert self.reasons(engine) == {"b": "no blocks: it needs 3, 1 of 4 are free for it"}

    def test_no_budget(self) -> None:
        engine = CoreHarness(max_num_batched_tokens=8)
        engine.submit("a", list(range(16)), 2)
        engine.submit("b", PROMPT, 2)
        engine.step()
        assert self.reasons(engine) == {"b": "no budget: the step's 8 tokens are given"}

    @pytest.mark.parametrize(
        ("knob", "reason"),
        [("paused", "paused"), ("draining", "draining: nothing new is admitted")],
    )
    def test_halted(self, knob: str, reason: str) -> None:
        engine = CoreHarness()
        engine.core.change_knobs({knob: True}, "test")
        engine.submit("a", PROMPT, 2)
        engine.run()
        assert self.reasons(engine) == {"a": reason}
        assert engine.runner.plans == []
        engine.core.change_knobs({knob: False}, "test")
        engine.finish()

    def test_many_that_wait_are_counted_beyond_those_shown(self) -> None:
        engine = CoreHarness(max_num_seqs=1)
        for i in range(300):
            engine.submit(f"r{i}", PROMPT, 2)
        engine.step()
        snapshot = engine.snapshot()
        assert snapshot.num_waiting == 299
        shown = [view for view in snapshot.requests if view.wait_reason]
        assert [view.ordinal for view in shown] == list(range(2, 202))

    @pytest.mark.parametrize("depth", [1, 2])
    def test_the_last_of_a_batch_makes_room_at_once(self, depth: int) -> None:
        """A slot that comes free when the last step in flight is taken in is used without a call
        from outside: the core is not idle."""
        engine = CoreHarness(depth=depth, max_num_seqs=1)
        engine.submit("a", PROMPT, 1)
        engine.submit("b", PROMPT, 1)
        engine.step()
        while not engine.core.idle:
            engine.step()
        assert set(engine.ends) == {"a", "b"}


def test_scheduler_is_pure() -> None:
    """Scheduler, cache and policies run without a runner, a clock or a model."""
    config = EngineConfig(
        num_blocks=8, block_size=4, max_model_len=32, max_num_seqs=2, max_num_batched_tokens=16
    )
    knobs = Knobs(max_num_seqs=2, max_num_batched_tokens=16)
    scheduler = Scheduler(KVCache(config, "key"), knobs)
    scheduler.add(make_request(1, [1, 2, 3]))
    planned = scheduler.plan(knobs, 0.0)
    assert planned is not None
    assert planned.plan.rows == (
        Row(seq=1, start=0, count=3, new_blocks=(0,), samples=True, prefill=True),
    )
