"""Request-level batching: a batch runs until its longest member ends."""

from __future__ import annotations

from engine.api.lifecycle import RequestState
from engine.api.waiting import Cause, Wait
from engine.batch.plan import Request
from engine.scheduling.composer import Policy, StepComposer


class Static(Policy):
    """Requests wait until a batch is full, then run together until the slowest has ended.

    This is how FasterTransformer and `generate` of transformers work. Prompts are padded to the
    longest, and decoding begins when all are computed. A member that has ended keeps its slot, its
    blocks and its place in every step (a bubble) until the last one ends. Blocks for prompt and
    `max_tokens` are reserved. With `static_fill` full, a batch starts only when `static_batch_size`
    requests wait. With idle, it starts with fewer too when nothing runs, so that a lone chat is
    served.

    Padding and bubbles are counted in each step's record, not computed. A batch is as large as
    slots and blocks allow. Prompts beyond the step's token budget are computed over several steps.
    Equal prefixes are still shared, unless `prefix_caching` is off. What another policy left
    running ends first.
    """

    name = "static"
    uses = frozenset({"static_batch_size", "static_fill"})

    def repeats(self, *, num_waiting: int, num_slots: int) -> bool:
        return True

    def compose(self, step: StepComposer) -> None:
        if not step.running:
            if not step.num_waiting or not self.starts(step, self.size(step)):
                return
            self._start(step, self.size(step))
        elif step.num_waiting:
            before = Cause.BATCH_BEFORE if step.group_runs else Cause.RUN_BEFORE
            step.hold(Wait(before, self.filled(step)))
        prompts = [request for request in step.running if request.is_prefill]
        for request in prompts or tuple(step.running):
            step.schedule(request)

    def size(self, step: StepComposer) -> int:
        """Members of a full batch: at most as many as may run, or wait in the queue."""
        knobs = step.knobs
        return min(knobs.static_batch_size, knobs.max_num_seqs, knobs.queue_limit)

    def starts(self, step: StepComposer, size: int) -> bool:
        """Whether a batch starts when nothing runs; if not, sets the step's reason to wait."""
        if step.num_waiting >= size or step.knobs.static_fill == "idle" or self.resumes(step):
            return True
        step.hold(Wait(Cause.BATCH, self.filled(step)))
        return False

    def resumes(self, step: StepComposer) -> bool:
        """Whether the next request was preempted: it has already waited for its batch."""
        head = step.next_waiting
        return head is not None and head.state is RequestState.PREEMPTED

    def filled(self, step: StepComposer) -> tuple[int, int]:
        """How many members of the next batch wait already, and how many a full one has."""
        size = self.size(step)
        return min(step.num_waiting, size), size

    def _start(self, step: StepComposer, size: int) -> None:
        members: list[Request] = []
        while len(members) < size and (head := step.next_waiting):
            if not step.admit(head, 0, reserve=True):
                break
            members.append(head)
        if members:
            step.start_group(members)
