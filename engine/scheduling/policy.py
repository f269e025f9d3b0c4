"""Policy: who gets how many tokens in a step. One file each; this is what they have in common."""

from __future__ import annotations

from typing import ClassVar, Protocol

from engine.scheduling.composer import StepComposer


class Policy(Protocol):
    """A batching policy.

    Blocks, preemption, watermark and slots are the composer's; a policy only chooses the order and
    the number of tokens, by calling `composer.schedule` and `composer.admit`.

    Attributes:
        name: as the `policy` knob names it.
        ignores: knobs without effect under this policy.
    """

    name: ClassVar[str]
    ignores: ClassVar[frozenset[str]]

    def compose(self, composer: StepComposer) -> None:
        """Choose the rows of the next step."""
        ...
