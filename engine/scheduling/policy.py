"""Policy: who gets how many tokens in a step. One file each; this is what they have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from engine.scheduling.composer import StepComposer
from engine.telemetry import StepRecord


class Policy(ABC):
    """A batching policy.

    Blocks, preemption, watermark, slots and the queue's order are the composer's; a policy only
    chooses who gets how many tokens, by calling `step.schedule` and `step.admit`. It lives until
    another policy is chosen, and may keep what it needs from step to step. Requests that were
    admitted under another one are among `step.running`, and are its to serve.

    Attributes:
        name: as the `policy` knob names it.
        uses: knobs that act under some policies only, and under this one.
    """

    name: ClassVar[str]
    uses: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def compose(self, step: StepComposer) -> None:
        """Choose the rows of the next step."""

    def observe(self, record: StepRecord) -> None:  # noqa: B027  # most learn nothing
        """A step has ended; what it took, for policies that learn."""
