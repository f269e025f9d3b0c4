"""Stall-free chunked prefill."""

from __future__ import annotations

from engine.api.waiting import Cause, Wait
from engine.scheduling.composer import Policy, StepComposer


class StallFree(Policy):
    """Decodes go first; chunks of prompts get what is left of the token budget.

    This is Sarathi-Serve (OSDI'24, Algorithm 3): every running decode gets its token, then prompts
    that are partly computed get chunks, then new requests are admitted while budget, slots and
    blocks last.
    No decode ever waits for a prompt. Unlike the paper, and like vLLM V1, a chunk may be of any
    length and several prompts may share one step.

    `prefill_chunk` caps the chunk of one prompt, so that a long one leaves budget for others.
    `max_partial_prefills` is the most prompts that a step may leave partly computed.
    """

    name = "stall_free"
    uses = frozenset({"prefill_chunk", "max_partial_prefills"})

    def repeats(self, *, num_waiting: int, num_slots: int) -> bool:
        return not (num_waiting and num_slots)

    def compose(self, step: StepComposer) -> None:
        chunk = step.knobs.prefill_chunk or None
        prompts = []
        for request in tuple(step.running):
            if request.is_prefill:
                prompts.append(request)
            else:
                step.schedule(request)
        for request in prompts:
            step.schedule(request, chunk)
        partial = sum(not step.completes(request) for request in prompts)
        limit = step.knobs.max_partial_prefills
        while head := step.next_waiting:
            if limit and partial >= limit:
                step.hold(Wait(Cause.PARTIAL_PREFILLS, (partial, limit)))
                return
            if not step.admit(head, chunk):
                return
            partial += not step.completes(head)
