"""StepComposer: one step while it is being put together; the only way a policy acts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.cache.manager import KVCache
from engine.knobs import Knobs
from engine.request import Request, RequestState
from engine.scheduling.queue import WaitingQueue
from engine.scheduling.reclaim import Reclaim


@dataclass(slots=True)
class PlannedRow:
    """A row not yet final: a preemption later in the same step may take it back."""

    request: Request
    start: int
    count: int
    new_blocks: tuple[int, ...]
    prefill: bool


class StepComposer:
    """Gives tokens and blocks to requests within the step's budget, the slots and the pool.

    Attributes:
        budget: tokens left for this step.
        running: requests that hold a slot, in the order of admission; changed as one goes.
        rows: what is planned so far, by request.
        admitted: requests that got a slot in this step.
        preempted: requests that lost their blocks in this step.
        stranded: requests that cannot get a block though nobody else holds one.
    """

    def __init__(
        self,
        knobs: Knobs,
        cache: KVCache,
        running: list[Request],
        waiting: WaitingQueue,
        reclaim: Reclaim,
    ) -> None:
        self.knobs = knobs
        self.budget = knobs.max_num_batched_tokens
        self.running = running
        self.rows: dict[Request, PlannedRow] = {}
        self.admitted: list[Request] = []
        self.preempted: list[Request] = []
        self.stranded: list[Request] = []
        self._cache = cache
        self._waiting = waiting
        self._reclaim = reclaim
        self._watermark = int(knobs.watermark * cache.pool.num_blocks)

    @property
    def next_waiting(self) -> Request | None:
        """The head of the queue."""
        return self._waiting.first()

    def schedule(self, request: Request, limit: int | None = None) -> int:
        """Plan up to `limit` tokens of a running request; returns how many.

        Takes the blocks it needs, from preempted requests if the pool is empty: of the running ones
        with the lowest priority the latest to arrive, which may be this request itself.
        """
        if request.state is not RequestState.RUNNING or not request.wants_tokens:
            return 0
        count = min(request.gap, self.budget)
        prefill = request.is_prefill
        if limit is not None:
            count = min(count, limit)
        if prefill and self.knobs.prefill_chunk:
            count = min(count, self.knobs.prefill_chunk)
        if count <= 0:
            return 0
        end = request.num_computed_tokens + count
        while self._cache.missing(request, end) > self._cache.pool.num_available:
            if self._reclaim.num_pending:
                return 0  # Blocks are on their way back; nobody else need lose any for this.
            if len(self.running) == 1:
                self.stranded.append(request)
                return 0
            victim = max(self.running, key=lambda r: (-r.priority, r.ordinal))
            self.preempt(victim)
            if victim is request:
                return 0
        new_blocks = self._cache.extend(request, end)
        start = request.num_computed_tokens
        self.rows[request] = PlannedRow(request, start, count, new_blocks, prefill)
        self.budget -= count
        return count

    def admit(self, request: Request, limit: int | None = None) -> int:
        """Give the head of the queue a slot, its cached prefix and its first tokens.

        Returns the number of tokens planned; 0 if it has to wait, with `obstacle` saying why.
        """
        hit = self._hit(request)
        if self.obstacle(request, hit):
            return 0
        self._waiting.remove(request)
        self._cache.adopt(request, hit)
        request.state = RequestState.RUNNING
        self.running.append(request)
        self.admitted.append(request)
        return self.schedule(request, limit)

    def obstacle(self, request: Request, hit: Sequence[int] | None = None) -> str:
        """Why a waiting request cannot be admitted now; empty if it can be."""
        knobs, pool = self.knobs, self._cache.pool
        if knobs.paused:
            return "paused"
        if knobs.draining and request.state is not RequestState.PREEMPTED:
            return "draining: nothing new is admitted"
        if request.num_in_flight:
            return "its last step is still running"
        if self.preempted:
            return "the pool just ran out of blocks"
        if len(self.running) >= knobs.max_num_seqs:
            return f"no slot: {len(self.running)} of {knobs.max_num_seqs} sequences run"
        if self.budget <= 0:
            return f"no budget: the step's {knobs.max_num_batched_tokens} tokens are given"
        if hit is None:
            hit = self._hit(request)
        # The whole prompt must fit beside what half-computed prompts still need: two of them could
        # otherwise hold all blocks and neither end.
        need = self._cache.blocks_for(request.num_tokens) - len(hit)
        promised = sum(self._cache.missing(r, r.num_tokens) for r in self.running)
        kept = self._watermark if self.running else 0
        free = self._cache.num_obtainable(list(hit)) - promised - kept
        if need > free:
            return (
                f"no blocks: it needs {need}, {max(free, 0)} of {pool.num_blocks} are free for it"
            )
        return ""

    def _hit(self, request: Request) -> list[int]:
        return self._cache.match(request) if self.knobs.prefix_caching else []

    def preempt(self, victim: Request) -> None:
        """Take a running request's slot, blocks and row; what it computed is computed again.

        Recomputation (PagedAttention, SOSP'23, section 4.5): its tokens are kept and run as one
        prompt when it is admitted again, as the head of its priority.
        """
        row = self.rows.pop(victim, None)
        if row is not None:
            self.budget += row.count
        if victim in self.admitted:
            self.admitted.remove(victim)
        self.running.remove(victim)
        self._reclaim.free(victim)
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        victim.state = RequestState.PREEMPTED
        self._waiting.push(victim)
        self.preempted.append(victim)
