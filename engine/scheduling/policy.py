"""Policy: who gets how many tokens in a step. Each has a file; this is what they have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from engine.api.telemetry import StepRecord
from engine.scheduling.composer import StepComposer


class Policy(ABC):
    """A batching policy.

    Blocks, preemption, watermark, slots and the queue's order are the composer's; a policy only
    chooses who gets how many tokens, by calling `step.schedule` and `step.admit`. It lives until
    another policy is chosen, and may keep what it needs from step to step. Requests that were
    admitted under another policy are among `step.running`, and this one has to serve them.

    Attributes:
        name: as the `policy` knob names it.
        uses: those knobs that act under this policy but not under every one.
    """

    name: ClassVar[str]
    uses: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def compose(self, step: StepComposer) -> None:
        """Choose the rows of the next step."""

    def observe(self, record: StepRecord) -> None:  # noqa: B027  # most learn nothing
        """Take in the record of a step that has ended; for policies that learn."""
