"""Prefix hits: their blocks, holders, times and hashes."""

from __future__ import annotations

import hashlib
from array import array

import pytest

from engine.api.lifecycle import FinishReason
from engine.api.telemetry import BlockChange
from engine.api.waiting import in_words
from engine.batch.plan import Row, StepPlan
from engine.cache.manager import block_hash, root_hash
from tests.support.harness import CoreHarness

PROMPT = list(range(100, 108))


def row_of(plan: StepPlan, seq: int) -> Row:
    return next(row for row in plan.rows if row.seq == seq)


class TestFullPrefixHit:
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
        request = engine.request("a")
        assert (request.num_known_tokens, request.num_computed_tokens) == (5, 4)
        engine.step()
        engine.preempt(request.request_id)
        engine.step()
        # 6 tokens known, 5 were computed, 2 full blocks were published.
        assert row_of(engine.runner.plans[-1], 1).start == 4
        engine.finish()


class TestSalt:
    """Whatever becomes of a request, its blocks are found by those of its own salt only."""

    @pytest.mark.parametrize("depth", [1, 2])
    def test_a_preempted_request_finds_its_own_blocks(self, depth: int) -> None:
        engine = CoreHarness(block_size=2, depth=depth)
        engine.submit("asks", PROMPT, 6, cache_salt="a")
        for _ in range(4):
            engine.step()
        engine.commit()
        engine.preempt("asks")
        engine.finish()
        starts = [row.start for plan in engine.runner.plans if plan.new for row in plan.rows]
        assert starts[0] == 0 < starts[1]
        for salt, cached in (("", 0), ("b", 0), ("a", 6)):
            engine.submit(f"again {salt}", PROMPT, 6, cache_salt=salt)
            engine.finish()
            assert engine.ends[f"again {salt}"].usage.cached_tokens == cached

    def test_what_is_swapped_out_comes_back_to_its_own(self) -> None:
        engine = CoreHarness(block_size=2, num_host_blocks=30, preemption="swap")
        engine.submit("other", PROMPT, 3)
        engine.finish()
        engine.submit("asks", PROMPT, 6, cache_salt="a")
        for _ in range(3):
            engine.step()
        engine.preempt("asks")
        engine.finish()
        assert engine.tokens["asks"][:3] == engine.tokens["other"]
        assert engine.ends["asks"].usage.cached_tokens == 0

    @pytest.mark.parametrize(("salt", "cached"), [("a", 7), ("b", 0), ("", 0)])
    def test_a_reply_of_several_takes_over_those_of_its_own_salt(
        self, salt: str, cached: int
    ) -> None:
        engine = CoreHarness()
        engine.submit("first", PROMPT, 6, cache_salt="a")
        engine.step()
        engine.submit("second", PROMPT, 6, cache_salt=salt, fork_of="first")
        engine.finish()
        assert engine.ends["second"].usage.cached_tokens == cached
        assert engine.tokens["second"] == engine.tokens["first"]


class TestTouchBeforeGiving:
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
        assert "no blocks" in in_words(engine.snapshot().head_wait)
        engine.finish()


class TestPublishAfterTheForwardPass:
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
        """Computed tokens are published, and not tokens that are only known."""
        engine = CoreHarness(max_num_batched_tokens=10)
        engine.submit("a", list(range(30)), 1)
        engine.step()
        request = engine.request("a")
        assert (request.num_computed_tokens, request.num_published) == (10, 2)


class TestChainedHash:
    """A block is known by a cryptographic hash of all tokens up to its end, rooted in the model."""

    def test_it_is_sha_256_over_parent_and_ids(self) -> None:
        root = root_hash("model")
        assert root == hashlib.sha256(b"model").digest()
        ids = [1, 70_000, 2**32 - 1]
        expected = hashlib.sha256(root + array("I", ids).tobytes()).digest()
        assert array("I").itemsize == 4
        assert block_hash(root, ids) == expected
