"""Policies of one's own: how they are made known, and what happens when one raises."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from engine.api.errors import InvalidConfigError
from engine.api.lifecycle import FinishReason
from engine.api.telemetry import StepRecord
from engine.batch.plan import Request
from engine.scheduling.composer import Policy, StepComposer
from engine.scheduling.policies import POLICIES, policy_names, register
from tests.support.harness import CoreHarness

OWN = """
    from engine.scheduling.policies.orca import Orca
    from engine.scheduling.composer import Policy

    class LastFirst(Policy):
        name = "last_first"

        def compose(self, step):
            for request in tuple(step.running)[::-1]:
                step.schedule(request)
            while (head := step.next_waiting) and step.admit(head):
                pass

    class Unfinished(Policy):
        name = "unfinished"

    class Nameless(Policy):
        def compose(self, step): ...

    class Numbered(Nameless):
        name = 3

    class Taken(Nameless):
        name = "orca"

    class NoPolicy:
        name = "no_policy"

        def compose(self, step): ...

    number = 3
"""


class TestRegister:
    @pytest.fixture(autouse=True)
    def _module(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "own_policies.py").write_text(textwrap.dedent(OWN))
        (tmp_path / "broken_policies.py").write_text("1 / 0")
        monkeypatch.syspath_prepend(tmp_path)
        for name, policy in POLICIES.items():
            monkeypatch.setitem(POLICIES, name, policy)
        # Put back by the fixture: what a test registers goes with it.
        monkeypatch.setitem(POLICIES, "last_first", POLICIES["orca"])
        del POLICIES["last_first"]

    def test_a_policy_of_one_s_own_serves(self) -> None:
        assert register("own_policies:LastFirst") == "last_first"
        assert policy_names()[-1] == "last_first"
        assert register("own_policies:LastFirst") == "last_first"  # twice is once
        engine = CoreHarness()
        for i in range(4):
            engine.submit(f"r{i}", [i, 1, 2], 3)
        engine.core.change_knobs({"policy": "last_first"}, "me")
        engine.step()
        engine.step()
        assert [row.seq for row in engine.runner.plans[-1].rows] == [4, 3, 2, 1]
        engine.finish()
        assert engine.records[-1].policy == "last_first"

    def test_one_of_ours_may_be_named_too(self) -> None:
        assert register("engine.scheduling.policies.orca:Orca") == "orca"

    @pytest.mark.parametrize(
        ("path", "why"),
        [
            ("nowhere:Policy", "it could not be loaded: ModuleNotFoundError"),
            ("own_policies:Missing", "it could not be loaded: AttributeError"),
            ("own_policies", "it could not be loaded: "),
            ("", "it could not be loaded: "),
            ("broken_policies:Own", "it could not be loaded: ZeroDivisionError: division by zero"),
            ("own_policies:NoPolicy", "NoPolicy must be a class that derives from "),
            ("own_policies:number", "number must be a class that derives from "),
            ("own_policies:Unfinished", "Unfinished must be a class that derives from "),
            ("engine.scheduling.composer:Policy", "Policy must be a class that derives from "),
            ("own_policies:Nameless", "its name is '', which must be a name of its own beside "),
            ("own_policies:Numbered", "its name is 3, which must be a name of its own beside "),
            ("own_policies:Taken", "its name is 'orca', which must be a name of its own beside "),
        ],
    )
    def test_what_is_no_policy_is_refused(self, path: str, why: str) -> None:
        before = dict(POLICIES)
        with pytest.raises(InvalidConfigError) as caught:
            register(path)
        assert caught.value.param == "policy"
        assert caught.value.message.startswith(f"policy is {path!r}; {why}")
        assert before == POLICIES


class Raises(Policy):
    """Serves as the default does, then raises: in its constructor, in `compose` or in `observe`.

    Attributes:
        where: it raises.
        after: requests that it has admitted before it does.
        limit: tokens that it gives them.
    """

    name = "raises"
    where = "compose"
    after = 0
    limit: int | None = None

    def __init__(self) -> None:
        if self.where == "init":
            raise ValueError("boom")

    def compose(self, step: StepComposer) -> None:
        for request in tuple(step.running):
            step.schedule(request)
        while len(step.admitted) < self.after and (head := step.next_waiting):
            step.admit(head, self.limit)
        if self.where == "compose":
            raise ValueError("boom")

    def observe(self, record: StepRecord) -> None:
        if self.where == "observe":
            raise ValueError("boom")


class TestAPolicyThatRaises:
    """Its plan is carried out, the default takes over, and the history says why."""

    @pytest.fixture(autouse=True)
    def _known(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(POLICIES, "raises", Raises)

    @pytest.mark.parametrize("depth", [1, 2])
    @pytest.mark.parametrize("after", [0, 2, 9])
    @pytest.mark.parametrize("where", ["init", "compose", "observe"])
    def test_nothing_is_lost(
        self, monkeypatch: pytest.MonkeyPatch, where: str, after: int, depth: int
    ) -> None:
        monkeypatch.setattr(Raises, "where", where)
        monkeypatch.setattr(Raises, "after", after)
        engine = CoreHarness(depth=depth)
        engine.submit("before", [1, 2, 3], 9)
        engine.step()
        for i in range(4):
            engine.submit(f"r{i}", [i, 1, 2], 3)
        engine.core.change_knobs({"policy": "raises"}, "me")
        engine.step()
        if where == "compose":
            plan = next(
                p for p in engine.runner.plans if p.step > engine.core.ledger.history[0].step
            )
            assert [row.seq for row in plan.rows] == [1, *range(2, 2 + min(after, 4))]
        engine.finish()
        assert {end.reason for end in engine.ends.values()} == {FinishReason.LENGTH}
        assert engine.core.ledger.knobs.policy == "stall_free"
        chosen, replaced = engine.core.ledger.history
        assert (chosen.who, chosen.changed) == ("me", {"policy": ("stall_free", "raises")})
        assert replaced.who == "raises: ValueError: boom"
        assert replaced.changed == {"policy": ("raises", "stall_free")}
        assert not replaced.undoes

    def test_one_that_cannot_be_made_when_a_model_is_loaded(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Raises, "where", "init")
        engine = CoreHarness(policy="raises")
        (policy,) = (state for state in engine.snapshot().knobs if state.name == "policy")
        assert (policy.requested, policy.effective) == ("raises", "stall_free")
        engine.submit("a", [1, 2, 3], 2)
        engine.finish()
        (replaced,) = engine.core.ledger.history
        assert replaced.who == "raises: ValueError: boom"

    @pytest.mark.parametrize("depth", [1, 2])
    def test_with_nothing_planned_the_default_plans_at_once(self, depth: int) -> None:
        """Nobody has to wake the engine."""
        engine = CoreHarness(depth=depth, policy="raises")
        engine.submit("a", [1, 2, 3], 2)
        engine.step()
        assert len(engine.tokens["a"]) == 1

    def test_what_was_admitted_without_tokens_counts_as_admitted(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Slots and blocks only, and then it raised: the step of the default tells of them."""
        monkeypatch.setattr(Raises, "after", 2)
        monkeypatch.setattr(Raises, "limit", 0)
        engine = CoreHarness()
        engine.submit("warm", list(range(9)), 1)
        engine.finish()
        engine.core.change_knobs({"policy": "raises"}, "me")
        for i in range(3):
            engine.submit(f"r{i}", list(range(9)), 2)
        engine.step()
        record = engine.records[-1]
        assert record.admitted == ("r0", "r1", "r2")
        assert (record.prefix_queried_tokens, record.prefix_hit_tokens) == (27, 24)
        engine.finish()
        for i in range(3):
            assert engine.ends[f"r{i}"].usage.cached_tokens == 8
            assert engine.ends[f"r{i}"].timings.queue is not None

    def test_the_failure_of_one_is_not_the_next_one_s(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It raised in `observe`, and another policy was chosen before the next plan."""
        monkeypatch.setattr(Raises, "where", "observe")
        monkeypatch.setattr(Raises, "after", 1)
        engine = CoreHarness(policy="raises")
        engine.submit("a", [1, 2, 3], 3)
        engine.step()
        engine.core.change_knobs({"policy": "orca"}, "me")
        engine.finish()
        assert engine.core.ledger.knobs.policy == "orca"


def test_a_policy_cannot_admit_what_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the same one, one that runs, or one that it kept from a step before: nothing happens,
    and nobody is taken out of the queue in its place."""

    class Stubborn(Policy):
        name = "stubborn"

        def __init__(self) -> None:
            self._seen: list[Request] = []

        def compose(self, step: StepComposer) -> None:
            for request in tuple(step.running):
                step.schedule(request)
            self._seen += step.waiting(1)
            for request in self._seen:
                step.admit(request)
                assert not step.admit(request)

    monkeypatch.setitem(POLICIES, "stubborn", Stubborn)
    engine = CoreHarness(policy="stubborn")
    for i in range(6):
        engine.submit(f"r{i}", [i, 1, 2], 2)
    engine.finish()
    assert engine.core.ledger.knobs.policy == "stubborn"
