"""CoreHarness: a core over a scripted runner, driven step by step and checked after each."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import replace

from engine.api.block_map import BlockMap
from engine.api.client import Submission
from engine.api.config import EngineConfig
from engine.api.knobs import Knobs
from engine.api.lifecycle import FinishReason, RequestState, RequestTimings
from engine.api.sampling import SamplingParams
from engine.api.snapshot import Snapshot
from engine.api.status import ModelCard
from engine.api.telemetry import BlockChange, BlockEvents, StepRecord
from engine.api.waiting import Cause
from engine.batch.plan import End, Request, StopFound, TokenOutput
from engine.batch.shape import ModelShape
from engine.cache.manager import KVCache
from engine.cache.pool import BlockPool
from engine.core.core import EngineCore
from engine.scheduling.policies import POLICIES
from engine.scheduling.scheduler import Scheduler
from tests.support.clock import VirtualClock
from tests.support.scripted_runner import (
    ScriptedRunner,
    reference,
    scripted_logprobs,
    scripted_prompt,
)

EOS = 999
_WELL = (FinishReason.STOP, FinishReason.LENGTH)
# What the head of the queue waits for though it could run alone.
COMPANY = (Cause.BATCH, Cause.BATCH_OR_WINDOW, Cause.BATCH_BEFORE, Cause.RUN_BEFORE)
SHAPE = ModelShape(
    num_params=1000,
    num_active_params=800,
    hidden_size=8,
    vocab_size=1000,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    value_dim=4,
    windows=(None, 4),
    dtype_bytes=4,
)
CARD = ModelCard("scripted", "Scripted", 1000, "float32", "cpu", "none", 512, 4000, 64)


def make_request(ordinal: int, prompt: Sequence[int], **fields: object) -> Request:
    """A request as the core makes one, for tests below it."""
    defaults = {
        "request_id": f"r{ordinal}",
        "sampling": SamplingParams(temperature=0.0),
        "seed": 0,
        "eos_token_ids": frozenset({EOS}),
        "max_output_tokens": 100,
        "timings": RequestTimings(0.0),
    }
    known = {"ordinal": ordinal, "prompt_token_ids": array("I", prompt)}
    return Request(**(defaults | known | fields))  # type: ignore[arg-type]


def say(request: Request, token_ids: Sequence[int]) -> None:
    """Give a request outputs, as if steps had."""
    request.output_token_ids = array("I", token_ids)
    request.num_tokens = request.num_prompt_tokens + len(token_ids)


def compute(cache: KVCache, request: Request, num_tokens: int) -> None:
    """Allocate and publish blocks, as if a step had run."""
    cache.extend(request, num_tokens)
    request.num_computed_tokens = num_tokens
    cache.publish(request, num_tokens)


def let_go(cache: KVCache, request: Request) -> None:
    cache.pool.free(cache.detach(request), request.ordinal)


def states_of(blocks: BlockMap) -> str:
    """A letter for each block of a map that has runs only."""
    assert not any(segment.counts for segment in blocks.segments)
    return "".join(segment.state * segment.blocks for segment in blocks.segments)


class PoolReplay:
    """The pool rebuilt from block events alone."""

    def __init__(self, num_blocks: int) -> None:
        self.holders: dict[int, list[int]] = {}
        self.cached: set[int] = set()
        self.reserved: set[int] = set()
        self.pinned: set[int] = set()
        self._letters = ["f"] * num_blocks

    def copy(self) -> PoolReplay:
        replay = PoolReplay(0)
        replay.holders = {block: list(holders) for block, holders in self.holders.items()}
        replay.cached, replay.reserved = set(self.cached), set(self.reserved)
        replay.pinned, replay._letters = set(self.pinned), list(self._letters)
        return replay

    def apply(self, events: BlockEvents) -> None:
        for change, block, seq in events.log:
            holders = self.holders.setdefault(block, [])
            idle = self.cached | self.pinned
            if change in (BlockChange.GIVEN, BlockChange.RESERVED):
                assert not holders
                assert block not in idle
                holders.append(seq)
                if change is BlockChange.RESERVED:
                    self.reserved.add(block)
            elif change is BlockChange.FILLED:
                assert holders == [seq]
                self.reserved.remove(block)
            elif change is BlockChange.SHARED:
                assert block not in self.reserved
                assert bool(holders) != (block in idle)
                self.cached.discard(block)
                self.pinned.discard(block)
                holders.append(seq)
            elif change is BlockChange.EVICTED:
                assert seq == -1
                self.cached.remove(block)
            elif change is BlockChange.UNPINNED:
                self.pinned.remove(block)
                self.cached.add(block)
            elif change is BlockChange.PINNED and seq == -1:
                self.cached.remove(block)
                self.pinned.add(block)
            else:
                holders.remove(seq)
                assert bool(holders) == (change is BlockChange.LEFT)
                self.reserved.discard(block)
                if change is BlockChange.CACHED:
                    self.cached.add(block)
                elif change is BlockChange.PINNED:
                    self.pinned.add(block)
            self._letters[block] = self._state(block)
            if not holders:
                del self.holders[block]

    @property
    def states(self) -> str:
        """A letter for each block."""
        return "".join(self._letters)

    def _state(self, block: int) -> str:
        if holders := self.holders[block]:
            shared = len(holders) > 1
            return "s" if shared else "r" if block in self.reserved else "u"
        return "p" if block in self.pinned else "c" if block in self.cached else "f"


class CoreHarness:
    """Collects what a core gives, and checks its books and its word after every step.

    Args:
        num_snapshots: states of prefixes that a model with states keeps; None is one without.

    Attributes:
        tokens: output token ids so far, by request.
        prompts: how many tokens of each prompt were told of, by request.
        ends: how each request ended; a second end fails the test.
        records: of all steps so far.
        seed: of every request that names none; greedy ones do not look at it.
    """

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        num_host_blocks: int = 0,
        num_snapshots: int | None = None,
        max_model_len: int = 128,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 64,
        depth: int = 1,
        watermark: float = 0.0,
        eos: Iterable[int] = (EOS,),
        clock: VirtualClock | None = None,
        **knobs: object,
    ) -> None:
        self.config = EngineConfig(
            num_blocks=num_blocks,
            block_size=block_size,
            num_host_blocks=num_host_blocks,
            num_snapshots=num_snapshots or 0,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
        )
        self.clock = clock or VirtualClock()
        keeps_states = num_snapshots is not None
        self.runner = ScriptedRunner(self.config, depth, keeps_states, clock=self.clock)
        self.eos = frozenset(eos)
        start = {
            "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": max_num_batched_tokens,
            "watermark": watermark,
        }
        self.core = EngineCore(
            config=self.config,
            runner=self.runner,
            shape=replace(SHAPE, state_bytes=100) if keeps_states else SHAPE,
            card=CARD,
            key="scripted",
            eos_token_ids=self.eos,
            knobs=Knobs(**(start | knobs)),  # type: ignore[arg-type]
            clock=self.clock,
        )
        self.tokens: dict[str, list[int]] = {}
        self.prompts: dict[str, int] = {}
        self.ends: dict[str, End] = {}
        self.records: list[StepRecord] = []
        self._prompts: dict[str, tuple[list[int], SamplingParams]] = {}
        self._references: dict[str, list[int]] = {}
        self._admitted: set[int] = set()
        self._replay = PoolReplay(num_blocks)

    def submit(
        self, name: str, prompt: Sequence[int], max_tokens: int | None = 4, **options: object
    ) -> None:
        sampling = {"max_tokens": max_tokens, "temperature": 0.0, "ignore_eos": True}
        arrival = options.pop("arrival", None)
        names = ("priority", "deadline", "origin", "fork_of", "cache_salt")
        routed = {key: options.pop(key) for key in names if key in options}
        params = SamplingParams(**(sampling | options))  # type: ignore[arg-type]
        self._prompts[name] = list(prompt), params
        submission = Submission(request_id=name, **routed)  # type: ignore[arg-type]
        self.core.add_request(submission, prompt, params, arrival)  # type: ignore[arg-type]

    def stop(self, name: str, num_output_tokens: int) -> None:
        """End the request as the text side does when a stop string ended in this output token."""
        self.core.stop(StopFound(name, num_output_tokens))

    def expected(self, name: str, count: int) -> list[int]:
        """The first `count` tokens that the model gives for this request alone."""
        known = self._references.get(name, [])
        if len(known) < count:
            prompt, params = self._prompts[name]
            eos = set() if params.ignore_eos else self.eos
            known = reference(
                prompt,
                count + 8,
                (params.seed or 0) if params.temperature else 0,
                eos | set(params.stop_token_ids),
                params.min_tokens,
            )
            self._references[name] = known
        return known[:count]

    def step(self) -> None:
        scheduler = self.scheduler
        knobs = self.core.ledger.knobs
        running_before = len(scheduler.running)
        plans_before = len(self.runner.plans)
        ends_before = len(self.ends)
        self._admitted |= {request.ordinal for request in scheduler.running}
        first = scheduler.waiting.first()
        stuck = not (running_before or self.core._in_flight or knobs.paused or knobs.draining)
        self._collect()
        assert not self.runner.violations, self.runner.violations
        self.core.check()
        plans = self.runner.plans[plans_before:]
        wait = scheduler.head_wait
        company = wait is not None and wait.cause in COMPANY
        if stuck and first is not None and not company:
            assert plans or len(self.ends) > ends_before, "the head of the queue is frozen"
        for plan in plans:
            assert not knobs.paused
            assert plan.num_tokens <= knobs.max_num_batched_tokens
            assert len(plan.rows) <= max(knobs.max_num_seqs, running_before)
            new = {sequence.seq for sequence in plan.new}
            assert not knobs.draining or new <= self._admitted, "only the preempted come back"
            self._admitted |= new
            if knobs.prefill_chunk and "prefill_chunk" in POLICIES[knobs.policy].uses:
                assert all(r.count <= knobs.prefill_chunk for r in plan.rows if r.prefill)
        if self.core.idle and not (knobs.paused or knobs.draining or company):
            assert self.core.num_unfinished == 0, "idle with work to do"
        self._follow_records()

    def run(self, max_steps: int = 2000) -> None:
        """Step until there is nothing to do."""
        for _ in range(max_steps):
            self.step()
            if self.core.idle:
                return
        raise AssertionError(f"not idle after {max_steps} steps")

    def finish(self, max_steps: int = 2000) -> None:
        """Step until everything has ended and every block was let go."""
        self.run(max_steps)
        assert self.core.num_unfinished == 0
        assert self.pool.num_used == 0
        assert self.scheduler.cache.host.num_used == 0
        assert set(self.ends) == set(self._prompts)

    @property
    def scheduler(self) -> Scheduler:
        return self.core._scheduler

    @property
    def pool(self) -> BlockPool:
        return self.scheduler.cache.pool

    def request(self, name: str) -> Request:
        """One that has not ended."""
        return self.core._table.live[name]

    def preempt(self, name: str) -> None:
        """Preempt a request that runs, as a policy may between two steps."""
        self.scheduler.preempt([self.request(name)], self.core.ledger.knobs)

    def commit(self) -> None:
        """End all steps in flight, and plan none."""
        while self.core._in_flight:
            self.core._commit()

    def snapshot(self) -> Snapshot:
        """A snapshot whose views were checked: who waits says why, and nobody else does."""
        snapshot = self.core.snapshot()
        for view in snapshot.requests:
            waits = view.state in (RequestState.WAITING, RequestState.PREEMPTED)
            assert (view.wait is not None) == waits
        return snapshot

    def _collect(self) -> None:
        for output in self.core.step():
            name = output.request_id
            assert name not in self.ends, f"{name} spoke after its end"
            tokens = self.tokens.setdefault(name, [])
            tokens.extend(output.token_ids)
            assert tokens == self.expected(name, len(tokens)), f"{name} has other tokens than alone"
            prompt, params = self._prompts[name]
            if output.prompt is not None:
                self._check_prompt(name, output)
            ended = output.end is not None and output.end.reason in _WELL
            if params.prompt_logprobs is not None and (output.token_ids or ended):
                assert self.prompts.get(name) == len(prompt), f"{name} was not told of its prompt"
            first = len(prompt) + len(tokens) - len(output.token_ids)
            assert output.logprobs == tuple(
                scripted_logprobs(position, token, params.logprobs)
                for position, token in enumerate(output.token_ids, first)
                if params.logprobs is not None
            )
            if output.end is not None:
                self.ends[name] = output.end
                self._check_end(name, output.end)

    def _check_prompt(self, name: str, output: TokenOutput) -> None:
        """Reported prompt logprobs continue the earlier ones, and are the prompt's own."""
        prompt, params = self._prompts[name]
        found, told = output.prompt, max(self.prompts.get(name, 0), 1)
        assert found is not None
        assert params.prompt_logprobs is not None
        assert not self.tokens[name], "a prompt is told before its output"
        end = told + len(found.token_ids)
        assert found == scripted_prompt(prompt[told:end], told, params.prompt_logprobs)
        self.prompts[name] = end

    def _check_end(self, name: str, end: End) -> None:
        prompt, params = self._prompts[name]
        assert (end.error is None) == (end.reason is not FinishReason.ERROR)
        assert end.usage.prompt_tokens == len(prompt)
        count = end.usage.completion_tokens
        if end.token_ids:  # a refused request has none
            assert [*end.token_ids] == [*prompt, *self.tokens[name][:count]]
        if end.reason is FinishReason.LENGTH:
            room = min(self.config.max_model_len, self.config.num_slots) - len(prompt)
            wanted = room if params.max_tokens is None else params.max_tokens
            assert count == len(self.tokens[name]) == wanted

    def _follow_records(self) -> None:
        """Rebuild the pool from the records, and compare it with the pool and with who holds it."""
        for record in self.core.records.since(len(self.records)):
            self.records.append(record)
            assert record.step == len(self.records), "a step left no record"
            self._replay.apply(record.blocks)
            states = self._replay.states
            idle = states.count("c") + states.count("p")
            counts = states.count("f"), idle, len(states) - states.count("f") - idle
            assert counts == (record.free_blocks, record.cached_blocks, record.used_blocks)
            assert 0 <= record.unused_slots <= record.given_slots <= self.config.num_slots
            assert record.num_tokens <= record.budget
        scheduler = self.scheduler
        pool = scheduler.cache.pool
        # What happened since the last record belongs to the next one.
        replay = self._replay
        if pool._log:
            replay = replay.copy()
            replay.apply(BlockEvents(tuple(pool._log)))
        assert replay.states == pool.copy().states
        held: dict[int, list[int]] = {}
        tables = [(r.ordinal, r.block_table + r.reserved_blocks) for r in scheduler.running]
        tables += scheduler.books.groups.parked_tables() + scheduler.books.reclaim.pending_tables()
        for seq, blocks in tables:
            for block in blocks:
                held.setdefault(block, []).append(seq)
        assert replay.holders.keys() == held.keys()
        for block, holders in replay.holders.items():
            assert sorted(holders) == sorted(held[block])
