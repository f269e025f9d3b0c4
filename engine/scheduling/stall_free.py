"""Stall-free chunked prefill."""

from __future__ import annotations

from typing import ClassVar

from engine.scheduling.composer import StepComposer


class StallFree:
    """Decodes first, prompt chunks in what is left of the token budget.

    Sarathi-Serve (OSDI'24, Algorithm 3): every running decode gets its token, then prompts that are
    partly computed get chunks, then new requests are admitted while budget, slots and blocks last.
    No decode ever waits for a prompt. Unlike the paper, and like vLLM V1, a chunk may be of any
    length and several prompts may share one step.
    """

    name: ClassVar[str] = "stall_free"
    ignores: ClassVar[frozenset[str]] = frozenset()

    def compose(self, composer: StepComposer) -> None:
        running = tuple(composer.running)
        for request in running:
            if not request.is_prefill:
                composer.schedule(request)
        for request in running:
            if request.is_prefill:
                composer.schedule(request)
        while (head := composer.next_waiting) and composer.admit(head):
            pass
