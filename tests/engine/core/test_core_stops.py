"""Stops, ends of sequence and `min_tokens`: where a reply ends."""

from __future__ import annotations

import pytest

from engine.api.lifecycle import FinishReason
from tests.support.harness import CoreHarness
from tests.support.scripted_runner import reference

PROMPT = list(range(100, 108))


class TestStopsAndMinTokens:
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
        assert [*end.token_ids] == [*PROMPT, *reference(PROMPT, at)]

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
