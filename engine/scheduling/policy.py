"""Policy: decides how many tokens each request gets in a step. Each policy has its own file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from engine.api.telemetry import StepRecord
from engine.scheduling.composer import StepComposer


class Policy(ABC):
    """A batching policy.

    The composer handles blocks, preemption, watermark, slots and the queue's order; a policy only
    chooses how many tokens each request gets, by calling `step.schedule` and `step.admit`. It lives
    until another policy is chosen, and may keep state from step to step. `step.running` includes
    requests admitted under another policy, and this one has to serve them.

    Attributes:
        name: its value of the `policy` knob.
        uses: knobs that act under this policy but not under every one.
    """

    name: ClassVar[str]
    uses: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def compose(self, step: StepComposer) -> None:
        """Choose the rows of the next step."""

    def observe(self, record: StepRecord) -> None:  # noqa: B027  # most learn nothing
        """Learn from the record of a step that has ended; most policies ignore it."""
