"""Seeds: what a request draws is its own."""

from __future__ import annotations

from engine.api.client import Submission
from engine.api.sampling import SamplingParams
from tests.support.harness import CoreHarness

PROMPT = list(range(100, 108))


class TestSeeds:
    """Randomness is (seed, position): one seed for a request's whole life, none of it shared."""

    def test_an_unseeded_request_draws_once(self) -> None:
        engine = CoreHarness(num_blocks=64)
        for name in "ab":
            sampling = SamplingParams(max_tokens=6, ignore_eos=True)
            engine.core.add_request(Submission(request_id=name), PROMPT, sampling)
        engine.core.step()
        for request in engine.core._table.live.values():
            seed = request.seed
            assert 0 <= seed < 2**64
            engine.preempt(request.request_id)
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
