"""Timelines: what each step ran, short enough to be worked out by hand beside it."""

from __future__ import annotations

from collections.abc import Sequence

from engine.api.waiting import in_words
from engine.batch.plan import Row, StepPlan
from tests.support.harness import CoreHarness


class Timeline:
    """Drives an engine whose requests are named a, b, c... in the order of arrival.

    A step is written as its rows: `a` is a decode of a, `A5` five tokens of its prompt; `pad7` are
    seven tokens of prompt padding and `bubble2` two decodes of members that have ended.
    """

    def __init__(self, **options: object) -> None:
        self.engine = CoreHarness(**({"prefix_caching": False} | options))  # type: ignore[arg-type]
        self._arrivals = 0
        self._start = self.engine.clock.now

    def at(self, ms: float) -> None:
        """Let time pass until so many ms after the start."""
        assert self.engine.clock.now <= self._start + ms / 1000 + 1e-9
        self.engine.clock.now = self._start + ms / 1000

    def wait(self) -> None:
        """Let time pass until the idle engine wants its next step."""
        assert self.engine.core.next_wake is not None
        self.engine.clock.now = self.engine.core.next_wake

    @property
    def wake(self) -> float:
        """When the idle engine wants its next step, in ms after the start."""
        core = self.engine.core
        assert core.idle
        assert core.next_wake is not None
        return round((core.next_wake - self._start) * 1000, 6)

    def arrive(self, *shapes: tuple[int, int]) -> None:
        """Requests of (prompt tokens, output tokens)."""
        for prompt, outputs in shapes:
            name = _name(self._arrivals + 1)
            self._arrivals += 1
            tokens = [(31 * self._arrivals + i) % 1000 for i in range(prompt)]
            self.engine.submit(name, tokens, outputs)

    def step(self) -> str:
        """The work of the next step; empty if there is none."""
        before = len(self.engine.runner.plans)
        self.engine.step()
        return " / ".join(_show(plan) for plan in self.engine.runner.plans[before:])

    def steps(self, count: int) -> list[str]:
        return [self.step() for _ in range(count)]

    @property
    def why(self) -> str:
        """Why the head of the queue waits."""
        return in_words(self.engine.core.head_wait)

    @property
    def ended(self) -> str:
        """Those that have ended."""
        return "".join(sorted(self.engine.ends))

    def turn(self, **changes: object) -> None:
        self.engine.core.change_knobs(changes, "test")


def _name(ordinal: int) -> str:
    return chr(ord("a") + ordinal - 1)


def _show(plan: StepPlan) -> str:
    shown = [_name(r.seq).upper() + str(r.count) if r.prefill else _name(r.seq) for r in plan.rows]
    return " ".join([*shown, *_wasted(plan.padding)])


def _wasted(padding: Sequence[Row]) -> list[str]:
    prompt = sum(row.count for row in padding if row.prefill)
    bubbles = sum(row.count for row in padding if not row.prefill)
    return [f"pad{prompt}"] * bool(prompt) + [f"bubble{bubbles}"] * bool(bubbles)
