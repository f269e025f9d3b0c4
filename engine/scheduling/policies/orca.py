"""Iteration-level scheduling, as Orca has it."""

from __future__ import annotations

from engine.scheduling.composer import Policy, StepComposer


class Orca(Policy):
    """Every step serves all running requests, and new ones with their whole prompts.

    This is Orca (OSDI'22, Algorithm 1). A new batch is formed at each iteration, first come, first
    served. Prompts run whole, in the same iteration as decodes, and every operator but attention
    runs over the tokens of all (selective batching, section 3). A request is admitted only when key
    and value slots for its prompt and `max_tokens` can be reserved, so that neither deadlocks nor
    preemptions arise. A decode waits as long as the longest prompt beside it takes.

    It differs from the paper in three ways. There is one device, so iterations are not pipelined.
    Slots are counted in blocks of the pool, so equal prefixes are still shared (set
    `prefix_caching` off for the paper's behaviour). A prompt longer than the step's token budget,
    which the buffers are sized for, runs in chunks.
    """

    name = "orca"

    def repeats(self, *, num_waiting: int, num_slots: int) -> bool:
        return not (num_waiting and num_slots)

    def compose(self, step: StepComposer) -> None:
        for request in tuple(step.running):
            step.schedule(request)
        while (head := step.next_waiting) and step.admit(head, whole=True, reserve=True):
            pass
