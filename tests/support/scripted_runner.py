"""ScriptedRunner: a runner whose cache holds token ids, so that every wrong block shows."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from engine.api.config import EngineConfig
from engine.api.logprobs import PromptLogprobs, TokenLogprobs
from engine.api.telemetry import PhaseTimes
from engine.batch.plan import NewSequence, Row, StepPlan, StepResult
from tests.support.clock import VirtualClock

VOCAB = 1000


def next_token(context: Sequence[int], seed: int = 0) -> int:
    """The model: the next token is a function of the seed and all tokens before it."""
    value = 7 + seed
    for token in context:
        value = (value * 31 + token + 1) % 1_000_003
    return value % VOCAB


def scripted_logprobs(position: int, token: int, count: int) -> TokenLogprobs:
    """The logprobs of a row with a token: the place shows one that came twice or late."""
    top = tuple(((token + i) % VOCAB, -float(i)) for i in range(count))
    return TokenLogprobs(-float(token), position, top)


def scripted_prompt(tokens: Sequence[int], first: int, count: int) -> PromptLogprobs:
    """The logprobs of a row for tokens of a prompt, of which `first` is the place."""
    found = [scripted_logprobs(first + i, token, count) for i, token in enumerate(tokens)]
    top = [pair for one in found for pair in one.top]
    return PromptLogprobs(
        first,
        array("I", tokens),
        array("f", [one.logprob for one in found]),
        array("I", [one.rank for one in found]),
        count,
        array("I", [token for token, _ in top]),
        array("f", [logprob for _, logprob in top]),
    )


def reference(
    prompt: Sequence[int],
    count: int,
    seed: int = 0,
    suppressed: Collection[int] = (),
    min_tokens: int = 0,
) -> list[int]:
    """The model's output for a prompt alone; `suppressed` ids not before `min_tokens` outputs."""
    tokens = list(prompt)
    for i in range(count):
        token = next_token(tokens, seed)
        while i < min_tokens and token in suppressed:
            token = (token + 1) % VOCAB
        tokens.append(token)
    return tokens[len(prompt) :]


@dataclass
class _Sequence:
    new: NewSequence
    tokens: list[int]
    blocks: list[int]
    computed: int


@dataclass(frozen=True)
class _InFlight:
    """A started plan: the blocks that it reads, and the slots that it writes."""

    plan: StepPlan
    reads: frozenset[int]
    writes: frozenset[tuple[int, int]]


@dataclass
class ScriptedRunner:
    """Implements `engine.batch.plan.Runner`, and checks what a runner may rely on.

    A row writes its token ids to its slots and then reads its whole context back through its block
    table: a block that was shared, copied, evicted, given or freed wrongly makes the tokens differ.
    What a plan in flight reads or writes may not be given away, nor found before it is written.

    Attributes:
        depth: plans that may be in flight.
        keeps_states: whether each sequence has a state, which is the tokens that went into it.
        fail_steps: step numbers whose result raises.
        fail_starts: step numbers whose start raises.
        failure: what they raise.
        nan_seqs: sequences whose logits are not finite.
        on_step: called before a step is computed.
        scripts: what to sample, by sequence; others get what the model of the tests gives.
        plans: all that were started.
        violations: what was wrong with them; the core takes an exception for a device's.
    """

    config: EngineConfig
    depth: int = 1
    keeps_states: bool = False
    clock: VirtualClock | None = None
    seconds_per_step: float = 0.01
    fail_steps: set[int] = field(default_factory=set)
    fail_starts: set[int] = field(default_factory=set)
    failure: Exception = field(default_factory=lambda: MemoryError("scripted failure"))
    nan_seqs: set[int] = field(default_factory=set)
    on_step: Callable[[StepPlan], None] | None = None
    scripts: dict[int, list[int]] = field(default_factory=dict)
    plans: list[StepPlan] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        size = self.config.block_size
        self._slots: list[list[int | None]] = [[None] * size for _ in range(self.config.num_blocks)]
        self._host: list[list[int | None]] = [
            [None] * size for _ in range(self.config.num_host_blocks)
        ]
        # Blocks that were copied back for sequences that have had no row since.
        self._restored: set[int] = set()
        self._sequences: dict[int, _Sequence] = {}
        self._states: dict[int, list[int]] = {}
        self._snapshots: list[list[int]] = [[-1] for _ in range(self.config.num_snapshots)]
        self._queue: list[_InFlight] = []
        self._refused: list[StepPlan] = []
        self._tables: dict[int, list[int]] = {}

    def start_step(self, plan: StepPlan) -> object:
        self._require(len(self._queue) < self.depth, "more plans in flight than the runner takes")
        self._require(plan.rows, "an empty step")
        self._require(plan.num_tokens <= self.config.max_num_batched_tokens, "too many tokens")
        self._require(len(plan.rows) <= self.config.max_num_seqs, "too many sequences")
        self._require(
            len({row.seq for row in plan.rows}) == len(plan.rows), "two rows of one sequence"
        )
        prefills = [row.prefill for row in plan.rows]
        self._require(prefills == sorted(prefills), "decodes come first")
        self._require(plan.step == len(self.plans) + 1, "steps are counted from 1")
        self._require(
            all((row.seq, row.new_blocks, row.samples) == (-1, (), False) for row in plan.padding),
            "padding is of no sequence, without blocks and gives no token",
        )
        self.plans.append(plan)
        self._queue.append(self._look_ahead(plan))
        if plan.step in self.fail_starts:
            self._refused.append(self._queue.pop().plan)
            raise self.failure.with_traceback(None)
        return plan.step

    def result(self, handle: object) -> StepResult:
        plan = self._queue.pop(0).plan
        self._require(plan.step == handle, "results are asked for in order")
        while self._refused and self._refused[0].step < plan.step:
            self._learn(self._refused.pop(0))
        self._learn(plan)
        if self.clock is not None:
            self.clock.advance(self.seconds_per_step)
        if self.on_step is not None:
            self.on_step(plan)
        if plan.step in self.fail_steps:
            # Plans in flight were made for what this step does not leave.
            self.fail_steps.update(flight.plan.step for flight in self._queue)
            raise self.failure.with_traceback(None)
        self._copy(plan)
        for snapshot, seq in plan.restores:
            self._require(not self._states[seq], "a state that is restored is new")
            self._states[seq] = list(self._snapshots[snapshot])
        tokens = tuple(self._row(row) for row in plan.rows)
        for seq, snapshot in plan.saves:
            self._snapshots[snapshot] = list(self._states[seq])
        sampled = [(t, row.seq) for t, row in zip(tokens, plan.rows, strict=True) if row.samples]
        return StepResult(
            tuple(token for token, _ in sampled),
            PhaseTimes(0.0, self.seconds_per_step, 0.0),
            self._logprobs(sampled),
            tuple(
                (at, found)
                for at, row in enumerate(plan.rows)
                if (found := self._prompt(row)) is not None
            ),
        )

    def _copy(self, plan: StepPlan) -> None:
        """Move blocks as the plan says. What was copied back is gone from the host, so that a host
        block that is read again before it is written shows.
        """
        moves = (
            (self._slots, self._host, plan.swaps_out),
            (self._slots, self._slots, plan.copies),
            (self._host, self._slots, plan.swaps_in),
        )
        for sources, targets, pairs in moves:
            held = [list(sources[source]) for source, _target in pairs]
            for (_source, target), slots in zip(pairs, held, strict=True):
                targets[target] = slots
        for block, _target in plan.swaps_in:
            self._host[block] = [None] * self.config.block_size

    def _require(self, holds: bool, violation: str) -> None:
        if not holds:
            self.violations.append(violation)
            raise AssertionError(violation)

    def _look_ahead(self, plan: StepPlan) -> _InFlight:
        """Which blocks a plan will touch, checked against the plans before it."""
        size = self.config.block_size
        reading = frozenset[int]().union(*(flight.reads for flight in self._queue))
        writing = frozenset[tuple[int, int]]().union(*(flight.writes for flight in self._queue))
        for seq in plan.released:
            self._tables.pop(seq, None)
        starts = {row.seq: row.start for row in plan.rows}
        sources = {target: source for source, target in plan.copies}
        restored = self._look_at_swaps(plan, reading)
        for new in plan.new:
            self._tables[new.seq] = list(new.block_ids)
            full, rest = divmod(starts[new.seq], size)
            self._require(
                len(new.block_ids) == full + bool(rest), "what is held holds what is computed"
            )
            own = self._restored.intersection(new.block_ids)
            self._restored -= own
            found = {
                (block, i)
                for block in new.block_ids[:full]
                if block not in own
                for i in range(size)
            }
            if rest and new.block_ids[full] not in own:
                target = new.block_ids[full]
                self._require(target in sources, "a partly filled block that is not copied")
                self._require(target not in reading, "a block of a plan in flight is given away")
                source = sources.pop(target)
                found |= {(source, i) for i in range(rest)}
            self._require(writing.isdisjoint(found), "a hit on a block that is not written yet")
        self._require(not sources, "a copy for no new sequence of this plan")
        reads = {source for source, _target in plan.copies} | restored
        writes: set[tuple[int, int]] = set()
        for row in plan.rows:
            self._require(
                reading.isdisjoint(row.new_blocks), "a block of a plan in flight is given away"
            )
            table = self._tables[row.seq]
            table += row.new_blocks
            reads.update(table)
            writes.update(
                (table[p // size], p % size) for p in range(row.start, row.start + row.count)
            )
        return _InFlight(plan, frozenset(reads), frozenset(writes))

    def _look_at_swaps(self, plan: StepPlan, reading: Collection[int]) -> set[int]:
        """Check what a plan copies to host memory and back; returns the blocks that it fills."""
        out, back = [host for _block, host in plan.swaps_out], plan.swaps_in
        self._require(len(set(out)) == len(out), "a host block is written twice")
        restored = {block for _host, block in back}
        self._require(len(restored) == len(back), "a block is copied back to twice")
        self._require(
            len({host for host, _block in back}) == len(back), "a host block is read twice"
        )
        self._require(restored.isdisjoint(reading), "a block of a plan in flight is given away")
        # Some were let go before anything was computed into them, and are given anew.
        self._restored -= {block for row in plan.rows for block in row.new_blocks}
        self._restored -= {target for _source, target in plan.copies}
        self._restored |= restored
        return restored

    def _learn(self, plan: StepPlan) -> None:
        for seq in plan.released:
            self._sequences.pop(seq, None)
            self._states.pop(seq, None)
        starts = {row.seq: row.start for row in plan.rows}
        for new in plan.new:
            self._require(new.seq not in self._sequences, "a sequence is new twice")
            self._states[new.seq] = []
            self._sequences[new.seq] = _Sequence(
                new, list(new.token_ids), list(new.block_ids), starts[new.seq]
            )
        self._require(len(self._sequences) <= self.config.max_num_seqs, "not released in time")

    def _row(self, row: Row) -> int:
        sequence = self._sequences[row.seq]
        size = self.config.block_size
        sequence.blocks += row.new_blocks
        self._require(row.start == sequence.computed, "a row goes on where the last one ended")
        self._require(row.count > 0, "a row without tokens")
        end = row.start + row.count
        self._require(len(sequence.blocks) == -(-end // size), "blocks are given as tokens arrive")
        self._require(end <= len(sequence.tokens), "tokens that do not exist yet")
        samples = end == len(sequence.tokens) and sequence.new.sampling.max_tokens != 0
        self._require(row.samples == samples, "a recomputed token is sampled again")
        for position in range(row.start, end):
            slots = self._slots[sequence.blocks[position // size]]
            slots[position % size] = sequence.tokens[position]
        sequence.computed = end
        if self.keeps_states:
            state = self._states[row.seq]
            self._require(state == sequence.tokens[: row.start], "a state of something else")
            state += sequence.tokens[row.start : end]
        context = [self._slots[sequence.blocks[p // size]][p % size] for p in range(end)]
        self._require(context == sequence.tokens[:end], "the cache holds something else")
        if not row.samples:
            return 0
        if row.seq in self.nan_seqs:
            sequence.tokens.append(0)  # what the next step, if it is in flight, goes on with
            return -1
        token = self._sample(sequence)
        sequence.tokens.append(token)
        return token

    def _prompt(self, row: Row) -> PromptLogprobs | None:
        new = self._sequences[row.seq].new
        end = min(row.start + row.count + 1, new.num_prompt_tokens)
        count = new.sampling.prompt_logprobs
        if count is None or row.start >= new.num_prompt_tokens or end <= new.num_logprobs_sent:
            return None
        first = max(row.start + 1, new.num_logprobs_sent)
        self._require(
            first == max(new.num_logprobs_sent, 1) or first == row.start + 1, "some are left out"
        )
        found = scripted_prompt(new.token_ids[first:end], first, count)
        return replace(found, is_finite=row.seq not in self.nan_seqs)

    def _logprobs(self, sampled: list[tuple[int, int]]) -> tuple[TokenLogprobs | None, ...]:
        found = []
        for token, seq in sampled:
            sequence = self._sequences[seq]
            count = sequence.new.sampling.logprobs
            none = token < 0 or count is None
            position = len(sequence.tokens) - 1
            found.append(None if none else scripted_logprobs(position, token, count or 0))
        return () if found.count(None) == len(found) else tuple(found)

    def _sample(self, sequence: _Sequence) -> int:
        new = sequence.new
        num_outputs = len(sequence.tokens) - new.num_prompt_tokens
        if new.seq in self.scripts:
            script = self.scripts[new.seq]
            return script[min(num_outputs, len(script) - 1)]
        token = next_token(sequence.tokens, new.seed if new.sampling.temperature else 0)
        while num_outputs < new.sampling.min_tokens and token in new.suppressed:
            token = (token + 1) % VOCAB
        return token
