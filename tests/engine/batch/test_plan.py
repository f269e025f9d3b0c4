"""A request's arithmetic."""

from __future__ import annotations

from engine.api.lifecycle import FinishReason, RequestTimings
from engine.api.sampling import SamplingParams
from tests.support.harness import make_request, say


class TestArithmetic:
    def test_gap_chases_known_and_placeholder_tokens(self) -> None:
        request = make_request(1, [1, 2, 3], max_output_tokens=2)
        assert (request.gap, request.is_prefill, request.wants_tokens) == (3, True, True)
        request.num_computed_tokens = 2
        assert (request.gap, request.is_prefill) == (1, True)  # the prompt's last token
        request.num_computed_tokens, request.num_in_flight, request.num_tokens = 3, 1, 4
        assert (request.gap, request.is_prefill, request.wants_tokens) == (1, False, True)
        assert request.num_known_tokens == 3
        request.num_computed_tokens, request.num_in_flight, request.num_tokens = 4, 2, 5
        assert (request.gap, request.wants_tokens) == (1, False)
        say(request, [7])
        request.num_computed_tokens = request.num_in_flight = 0
        assert (request.gap, request.is_prefill, request.wants_tokens) == (4, True, True)
        assert (request.num_known_tokens, request.max_tokens) == (4, 5)

    def test_where_the_output_ends(self) -> None:
        sampling = SamplingParams(min_tokens=2, stop_token_ids=(8,))
        request = make_request(
            1, [1], sampling=sampling, eos_token_ids=frozenset({9}), max_output_tokens=3
        )
        say(request, [9])
        assert request.ends_at(9) is None
        say(request, [1, 8])
        assert request.ends_at(8) is FinishReason.STOP
        assert request.ends_at(9) is FinishReason.STOP
        assert request.ends_at(7) is None
        say(request, [1, 1, 1])
        assert request.ends_at(1) is FinishReason.LENGTH
        assert request.ends_at(9) is FinishReason.STOP

    def test_stop_tokens_are_looked_up_and_not_walked(self) -> None:
        request = make_request(1, [1], sampling=SamplingParams(stop_token_ids=(8, 9, 8)))
        assert request.stop_token_ids == frozenset({8, 9})


def test_timings_before_anything_happened() -> None:
    timings = RequestTimings(5.0)
    values = (timings.queue, timings.prefill, timings.decode, timings.ttft, timings.e2e)
    assert values == (None,) * 5
    assert timings.tpot(3) is None


def test_tpot_while_running_and_after() -> None:
    timings = RequestTimings(0.0, first_token=1.0, last_token=4.0)
    assert timings.tpot(4) == 1.0
    assert timings.tpot(1) is None
    timings.finished = 7.0
    assert timings.tpot(4) == 2.0
