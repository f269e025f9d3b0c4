"""Prompts before decodes, as in vLLM V0 and TGI."""

from __future__ import annotations

from collections.abc import Sequence

from engine.api.waiting import Cause, Wait
from engine.batch.plan import Request
from engine.scheduling.composer import Policy, StepComposer


class PrefillFirst(Policy):
    """A step computes prompts only, or decodes only; prompts interrupt the decodes.

    With `waiting_served_ratio` 0 it is vLLM V0: whenever the head of the queue can be admitted, a
    step of whole prompts runs and every decode waits for it. With a larger ratio it is TGI's
    router, which weighs the two. Prompts interrupt only when the waiting requests are
    `waiting_served_ratio` times the running ones, or once each running one got `max_waiting_tokens`
    tokens since the last prompts, counting the token from the prompts' own step. A step of decodes
    follows each interruption. Blocks are allocated on demand, and requests are preempted when
    blocks run out (PagedAttention, SOSP'23).

    Unlike in both, a prompt longer than the token budget runs in chunks, over several steps of
    prompts.
    """

    name = "prefill_first"
    uses = frozenset({"waiting_served_ratio", "max_waiting_tokens"})

    def __init__(self) -> None:
        self._tokens_since = 0
        self._interrupted = False

    def repeats(self, *, num_waiting: int, num_slots: int) -> bool:
        return not (num_waiting and num_slots)

    def repeated(
        self, requests: Sequence[Request], starts: Sequence[float], ends: Sequence[float]
    ) -> None:
        self._tokens_since += len(ends)
        self._interrupted = False

    def compose(self, step: StepComposer) -> None:
        prompts = [request for request in step.running if request.is_prefill]
        decoding = len(step.running) - len(prompts)
        for request in prompts:
            step.schedule(request)
        if self._interrupts(step, decoding):
            while (head := step.next_waiting) and step.admit(head, whole=True):
                pass
        if step.rows:
            self._tokens_since, self._interrupted = 1, decoding > 0
            return
        for request in tuple(step.running):
            step.schedule(request)
        self._tokens_since += 1
        self._interrupted = False

    def _interrupts(self, step: StepComposer, decoding: int) -> bool:
        """Whether prompts may go before decodes now."""
        ratio, patience = step.knobs.waiting_served_ratio, step.knobs.max_waiting_tokens
        if not decoding or not ratio:
            return True
        if self._interrupted:
            step.hold(Wait(Cause.PREFILLS if step.rows else Cause.DECODES))
            return False
        wanted = int(decoding * ratio)
        if self._tokens_since >= patience or step.num_waiting >= wanted:
            return True
        left = patience - self._tokens_since
        step.hold(Wait(Cause.INTERRUPTION, (step.num_waiting, wanted, decoding, left)))
        return False
