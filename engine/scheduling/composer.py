"""StepComposer: builds one step for a policy, which acts through it alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from engine.api.knobs import Knobs
from engine.api.lifecycle import RequestState
from engine.api.telemetry import StepRecord
from engine.api.waiting import Cause, Wait
from engine.batch.plan import Request, Row
from engine.cache.manager import KVCache, Reclaim
from engine.scheduling.forks import Forks
from engine.scheduling.groups import Groups
from engine.scheduling.queue import WaitingQueue
from engine.scheduling.states import States
from engine.scheduling.swaps import Swaps

# The running request with the largest key is preempted; of equals, the latest arrival.
_VICTIMS: dict[str, Callable[[Request], tuple[float, int]]] = {
    "lowest_priority": lambda request: (-request.priority, request.ordinal),
    "latest": lambda request: (0, request.ordinal),
    "least_computed": lambda request: (-request.num_computed_tokens, request.ordinal),
}


@dataclass(slots=True)
class Books:
    """State that the parts of one scheduler share.

    Attributes:
        running: requests that hold a slot, in the order of admission.
        groups: request-level batches that run.
        swaps: victims whose computed tokens are in host memory.
        forks: requests that start from the tokens of a live one.
        states: snapshots of sequences' states; None if the model keeps no states.
    """

    cache: KVCache
    running: list[Request]
    waiting: WaitingQueue
    groups: Groups
    reclaim: Reclaim
    swaps: Swaps
    forks: Forks
    states: States | None

    @property
    def num_taken(self) -> int:
        """Slots that running requests and ended members of groups hold."""
        return len(self.running) + (self.groups.num_parked if self.groups.live else 0)


@dataclass(frozen=True, slots=True)
class Start:
    """Tokens that a request need not compute: a cached prefix, a fork's tokens, or swapped-out
    ones.

    Attributes:
        tokens: how many need not be computed.
        hit: the blocks of its cached prefix; empty if it forks.
        shared: how many blocks of its table are, or were, held by others.
        forks: whether the tokens come from the request that it forks.
        restored: whether those beyond the hit come from host memory.
    """

    tokens: int
    hit: list[int]
    shared: int
    forks: bool = False
    restored: bool = False

    @staticmethod
    def of(request: Request, books: Books, *, prefix_caching: bool, may_fork: bool) -> Start:
        """Choose the start that leaves the fewest tokens to compute.

        Args:
            may_fork: whether blocks may be copied for it.
        """
        cache = books.cache
        hit = cache.match(request) if prefix_caching else []
        found = len(hit) * cache.block_size
        if request.host_blocks and request.num_computed_tokens > found:
            return Start(request.num_computed_tokens, hit, len(hit), restored=True)
        common = books.forks.common(request) if may_fork else 0
        if common > found:
            return Start(common, [], common // cache.block_size, forks=True)
        return Start(found, hit, len(hit))


class StepComposer:
    """Allocates tokens and blocks to requests within the step's budget, the slots and the pool.

    Attributes:
        now: engine clock, seconds.
        budget: tokens left for this step.
        rows: rows planned so far, by request; a preemption removes its row.
        admitted: requests that got a slot in this step.
        preempted: requests that lost their blocks in this step.
        stranded: requests that cannot get a block although no other request holds one.
        wait: why the head of the queue was not admitted, or why the policy did not try.
        wake_at: when the policy wants a step even if nothing else happens; None if never.
        arrived: requests queued since the policy's last step; at its first step, all waiting ones.
    """

    def __init__(self, knobs: Knobs, books: Books, now: float = 0.0) -> None:
        self.knobs = knobs
        self.now = now
        self.budget = self.max_budget = knobs.max_num_batched_tokens
        self.rows: dict[Request, Row] = {}
        self.admitted: list[Request] = []
        self.preempted: list[Request] = []
        self.stranded: list[Request] = []
        self.wait: Wait | None = None
        self.wake_at: float | None = None
        self.arrived: Sequence[Request] = ()
        self._books = books
        self._cache = books.cache
        self._watermark = int(knobs.watermark * books.cache.pool.num_blocks)
        self._promised: int | None = None
        books.waiting.step_begins(books.running, self.num_slots, knobs.max_num_seqs, now)

    @property
    def running(self) -> Sequence[Request]:
        """Requests that hold a slot, in the order of admission; a live view."""
        return self._books.running

    @property
    def next_waiting(self) -> Request | None:
        """The head of the queue."""
        return self._books.waiting.first()

    @property
    def num_waiting(self) -> int:
        return len(self._books.waiting)

    def waiting(self, count: int) -> list[Request]:
        """The next `count` requests of the queue, in order."""
        return self._books.waiting.head(count)

    @property
    def group_runs(self) -> bool:
        """Whether a request-level batch still runs."""
        return bool(self._books.groups.live)

    @property
    def num_slots(self) -> int:
        """Free slots."""
        return max(self.knobs.max_num_seqs - self._books.num_taken, 0)

    def is_barred(self, request: Request) -> bool:
        """Whether the free slots are reserved for others than this waiting request."""
        return self._books.waiting.is_barred(request)

    @property
    def moved(self) -> int:
        """Bytes to copy to host memory and back for the rows planned so far."""
        return self._books.swaps.moved

    def limit_budget(self, tokens: int) -> None:
        """Lower this step's token budget below the knob; call it before anything is planned."""
        self.budget = self.max_budget = max(0, min(tokens, self.knobs.max_num_batched_tokens))

    def hold(self, wait: Wait) -> None:
        """Set why the policy does not try to admit, which the head of the queue shows."""
        self.wait = wait

    def wake(self, moment: float) -> None:
        """Request a step at this time on the engine's clock, if none comes earlier."""
        self.wake_at = moment if self.wake_at is None else min(self.wake_at, moment)

    def schedule(self, request: Request, limit: int | None = None) -> int:
        """Plan up to `limit` tokens of a running request; returns how many.

        The blocks that they need come from the pool. While it has too few, running requests are
        preempted, in the order of the knob `victim`; this request may be one of them.
        """
        if request.state is not RequestState.RUNNING or not request.wants_tokens:
            return 0
        start = request.num_computed_tokens
        count = min(request.num_tokens - start, self.budget)
        if limit is not None:
            count = min(count, limit)
        if count <= 0:
            return 0
        cache, states = self._cache, self._books.states
        end = start + count
        if states is not None:
            end = states.row_end(request, start, end)
            count = end - start
        new_blocks: tuple[int, ...] = ()
        if end > len(request.block_table) * cache.block_size:
            missing = cache.missing(request, end)
            if missing and not self._make_room(request, missing):
                return 0
            if self._promised is not None:
                self._promised -= missing
            new_blocks = cache.extend(request, end)
        samples = end == request.num_tokens and request.max_output_tokens > 0
        self.rows[request] = Row(
            request.ordinal, start, count, new_blocks, samples, request.is_prefill
        )
        self.budget -= count
        if states is not None and self.knobs.prefix_caching:
            states.save(request, end)
        return count

    def _make_room(self, request: Request, missing: int) -> bool:
        """Preempt until `missing` blocks are available; False if the request has to wait."""
        running = self._books.running
        while missing > self._cache.pool.num_available:
            if self._books.reclaim.num_pending:
                return False  # Blocks are about to be freed, so no other request need be preempted.
            if len(running) == 1:
                self.stranded.append(request)
                return False
            victim = max(running, key=_VICTIMS[self.knobs.victim])
            self.preempt(victim, needed_by=request)
            if victim is request:
                return False
        return True

    def admit(
        self,
        request: Request,
        limit: int | None = None,
        *,
        whole: bool = False,
        reserve: bool = False,
    ) -> bool:
        """Give a waiting request a slot, its cached blocks and its first tokens.

        Args:
            limit: most tokens in this step; 0 gives it only its slot and blocks.
            whole: admit it only if this step computes its whole prompt. A prompt too long for any
                step with these decodes is admitted anyway, and runs in chunks.
            reserve: reserve blocks for all tokens that it may ever have (Orca, OSDI'22, section
                4.2).

        Returns:
            whether it was admitted; if not, `wait` says why. A request that does not wait is not
            admitted, and leaves `wait` unchanged.
        """
        if request.state not in (RequestState.WAITING, RequestState.PREEMPTED):
            return False
        # A copied block and the row that continues in it belong to one plan, because that plan may
        # fail. So a request that gets no tokens in this step gets no copy.
        tokens = limit is None or limit > 0
        start = self._start(request, may_fork=tokens)
        self.wait = self._wait_of(request, start, tokens=tokens, whole=whole, reserve=reserve)
        if self.wait is not None:
            return False
        self._books.waiting.remove(request)
        cache = self._cache
        if start.restored:
            self._books.swaps.restore(request, start.hit)
        elif start.forks:
            self._books.forks.start(request, start.tokens)
        else:
            if request.host_blocks:
                self._books.swaps.drop(request)  # The cache has as many of its tokens.
            cache.adopt(request, start.hit)
            if self._books.states is not None and start.hit:
                self._books.states.restore(request, len(start.hit))
        if reserve:
            cache.reserve(request, request.max_tokens)
        if self._promised is not None:
            self._promised += cache.missing(request, request.num_tokens)
        request.state = RequestState.RUNNING
        self._books.running.append(request)
        self.admitted.append(request)
        self._books.waiting.admitted(request, self.num_slots)
        self.schedule(request, limit)
        return True

    def start_group(self, members: Sequence[Request]) -> None:
        """Group requests admitted in this step: they keep slots and blocks until all have ended."""
        self._books.groups.start(members)

    def halt(self, request: Request) -> Wait | None:
        """Why a pause or a drain holds a waiting request back; None if neither does."""
        if self.knobs.paused:
            return Wait(Cause.PAUSED)
        if self.knobs.draining and request.state is not RequestState.PREEMPTED:
            return Wait(Cause.DRAINING)
        return None

    def wait_of(self, request: Request) -> Wait | None:
        """Why a waiting request cannot be admitted now; None if it can be."""
        start = self._start(request)
        return self._wait_of(request, start, tokens=True, whole=False, reserve=False)

    def num_cached(self, request: Request) -> int:
        """Tokens of a waiting request that need not be computed if it is admitted now."""
        return self._start(request).tokens

    def completes(self, request: Request) -> bool:
        """Whether this step computes all known tokens of a running request."""
        row = self.rows.get(request)
        return row is not None and row.start + row.count == request.num_tokens

    def _wait_of(
        self,
        request: Request,
        start: Start,
        *,
        tokens: bool,
        whole: bool,
        reserve: bool,
    ) -> Wait | None:
        if (halt := self.halt(request)) is not None:
            return halt
        if request.num_in_flight:
            return Wait(Cause.LAST_STEP)
        if self.preempted:
            return Wait(Cause.PREEMPTION)
        if not self.num_slots or self.is_barred(request):
            return Wait(Cause.SLOT, (self._books.num_taken, self.knobs.max_num_seqs))
        if tokens and self.budget <= 0:
            return Wait(Cause.BUDGET, (self.max_budget,))
        if request.fork_of is not None and tokens:
            source = self._books.forks.awaited(request)
            if source is not None:
                return Wait(Cause.FORK, of=source.request_id)
        if whole:
            count = request.num_tokens - start.tokens
            decodes = sum(not row.prefill for row in self.rows.values())
            if self.budget < count <= self.max_budget - decodes:
                return Wait(Cause.WHOLE_PROMPT, (count, self.budget))
        # The whole prompt must fit beside the blocks that partly computed prompts still need.
        # Otherwise two of them could hold all blocks, and neither would end.
        need = self._cache.blocks_for(request.max_tokens if reserve else request.num_tokens)
        need -= start.shared
        kept = self._watermark if self.running else 0
        free = self._cache.num_obtainable(start.hit) - self._promised_blocks() - kept
        if need > free:
            return Wait(Cause.BLOCKS, (need, max(free, 0), self._cache.pool.num_blocks))
        return None

    def _promised_blocks(self) -> int:
        """Blocks that running requests still need for their known tokens."""
        if self._promised is None:
            missing = self._cache.missing
            self._promised = sum(missing(r, r.num_tokens) for r in self._books.running)
        return self._promised

    def _start(self, request: Request, *, may_fork: bool = True) -> Start:
        caching = self.knobs.prefix_caching
        may_fork = may_fork and request.fork_of is not None
        return Start.of(request, self._books, prefix_caching=caching, may_fork=may_fork)

    def preempt(
        self, victim: Request, *, keep: bool = True, needed_by: Request | None = None
    ) -> None:
        """Free a running request's slot, blocks and row (PagedAttention, SOSP'23, section 4.5).

        Its computed tokens are copied to host memory or recomputed, as the knob `preemption`
        decides. The request keeps its tokens and its arrival. Recomputed tokens run as one prompt
        when it is readmitted.

        Args:
            keep: whether its blocks may be copied; False if their content may be wrong.
            needed_by: the request that needs the blocks, if there is one.
        """
        books = self._books
        row = self.rows.pop(victim, None)
        if row is not None:
            self.budget += row.count
        if books.states is not None:
            books.states.drop(victim)
        # Content that a plan has yet to copy is not there. The prefix it found when it was admitted
        # just now can be found again.
        owns = not books.forks.recall(victim) and victim not in self.admitted
        if victim in self.admitted:
            self.admitted.remove(victim)
        books.running.remove(victim)
        self._promised = None
        if victim in books.groups.live:
            for seq, blocks in books.groups.drop(victim):
                books.reclaim.free(seq, blocks)
        if not keep:
            if victim.host_blocks:
                books.swaps.drop(victim)
        elif not books.swaps.recall(victim) and owns:
            books.swaps.swap_out(victim, books.running, self.knobs)
        books.reclaim.free(victim.ordinal, self._cache.detach(victim))
        if not victim.host_blocks:
            victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        victim.preempted_for = needed_by.request_id if needed_by not in (None, victim) else ""
        victim.state = RequestState.PREEMPTED
        books.waiting.push(victim)
        books.waiting.preempted(victim, self.num_slots)
        self.preempted.append(victim)


class Policy(ABC):
    """A batching policy.

    The composer handles blocks, preemption, watermark, slots and the queue's order; a policy only
    chooses how many tokens each request gets, by calling `step.schedule` and `step.admit`. It lives
    until another policy is chosen, and may keep state from step to step. `step.running` includes
    requests admitted under another policy, and this one has to serve them.

    Attributes:
        name: its value of the `policy` knob.
        uses: knobs that act under this policy but not under every one.
    """

    name: ClassVar[str]
    uses: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def compose(self, step: StepComposer) -> None:
        """Choose the rows of the next step."""

    def repeats(self, *, num_waiting: int, num_slots: int) -> bool:
        """Whether, while all running requests decode, its steps give each of them one token, in the
        order of admission, and do nothing else. A simulation takes such steps at once.

        Args:
            num_waiting: requests that wait all the time.
            num_slots: free slots.
        """
        return False

    def repeated(  # noqa: B027  # most remember nothing
        self, requests: Sequence[Request], starts: Sequence[float], ends: Sequence[float]
    ) -> None:
        """Note that such steps gave each of these requests one token, from `starts` to `ends`."""

    def observe(self, record: StepRecord) -> None:  # noqa: B027  # most learn nothing
        """Learn from the record of a step that has ended; most policies ignore it."""
