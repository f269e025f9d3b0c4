"""Iteration-level scheduling, as Orca has it."""

from __future__ import annotations

from engine.scheduling.composer import StepComposer
from engine.scheduling.policy import Policy


class Orca(Policy):
    """Every step runs all that run, and new requests with their whole prompts.

    Orca (OSDI'22, Algorithm 1): the batch is formed anew at each iteration, first come, first
    served; prompts run whole in the same iteration as decodes, every operator but attention over
    the tokens of all (selective batching, section 3); a request is admitted only when key and
    value slots for its prompt and `max_tokens` can be reserved, so that no deadlock and no
    preemption arises. A decode waits as long as the longest prompt beside it takes.

    Unlike the paper: one device, so no pipelining of iterations; slots are counted in blocks of the
    pool, so equal prefixes are still shared (set `prefix_caching` off for the paper's behaviour);
    and a prompt longer than the step's token budget, which the buffers are sized for, runs in
    chunks.
    """

    name = "orca"

    def compose(self, step: StepComposer) -> None:
        for request in tuple(step.running):
            step.schedule(request)
        while (head := step.next_waiting) and step.admit(head, whole=True, reserve=True):
            pass
