"""ScriptedRunner: a runner whose cache holds token ids, so that every wrong block shows."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.config import EngineConfig
from engine.plan import NewSequence, PhaseTimes, Row, StepPlan, StepResult
from tests.support.clock import VirtualClock

VOCAB = 1000


def next_token(context: list[int]) -> int:
    """The model: the next token is a function of all tokens before it."""
    value = 7
    for token in context:
        value = (value * 31 + token + 1) % 1_000_003
    return value % VOCAB


def reference(prompt: list[int], count: int) -> list[int]:
    """What the model gives for a prompt alone."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


@dataclass
class _Sequence:
    new: NewSequence
    tokens: list[int]
    blocks: list[int]
    computed: int


@dataclass
class ScriptedRunner:
    """Implements `engine.plan.Runner`, and asserts what a runner may rely on.

    A row writes its token ids to its slots and then reads its whole context back through its block
    table: a block that was shared, evicted, given or freed wrongly makes the tokens differ.

    Attributes:
        depth: plans that may be in flight.
        fail_steps: step numbers whose result raises.
        nan_seqs: sequences whose logits are not finite.
    """

    config: EngineConfig
    depth: int = 1
    clock: VirtualClock | None = None
    seconds_per_step: float = 0.01
    fail_steps: set[int] = field(default_factory=set)
    nan_seqs: set[int] = field(default_factory=set)
    plans: list[StepPlan] = field(default_factory=list)

    def __post_init__(self) -> None:
        size = self.config.block_size
        self._slots: list[list[int | None]] = [[None] * size for _ in range(self.config.num_blocks)]
        self._sequences: dict[int, _Sequence] = {}
        self._queue: list[StepPlan] = []

    def submit(self, plan: StepPlan) -> object:
        assert len(self._queue) < self.depth, "more plans in flight than the runner takes"
        assert plan.rows, "an empty step"
        assert plan.num_tokens <= self.config.max_num_batched_tokens
        assert len(plan.rows) <= self.config.max_num_seqs
        prefills = [row.prefill for row in plan.rows]
        assert prefills == sorted(prefills), "decodes come first"
        self.plans.append(plan)
        self._queue.append(plan)
        return plan.step

    def result(self, handle: object) -> StepResult:
        plan = self._queue.pop(0)
        assert plan.step == handle, "results are asked for in order"
        for seq in plan.released:
            self._sequences.pop(seq, None)
        for new in plan.new:
            assert new.seq not in self._sequences, "a sequence is new twice"
            computed = len(new.block_ids) * self.config.block_size
            self._sequences[new.seq] = _Sequence(
                new, list(new.token_ids), list(new.block_ids), computed
            )
        assert len(self._sequences) <= self.config.max_num_seqs
        if self.clock is not None:
            self.clock.advance(self.seconds_per_step)
        if plan.step in self.fail_steps:
            raise MemoryError("scripted failure")
        tokens = tuple(self._row(row) for row in plan.rows)
        return StepResult(
            tuple(t for t, row in zip(tokens, plan.rows, strict=True) if row.samples),
            PhaseTimes(0.0, self.seconds_per_step, 0.0),
        )

    def _row(self, row: Row) -> int:
        sequence = self._sequences[row.seq]
        size = self.config.block_size
        sequence.blocks += row.new_blocks
        assert row.start == sequence.computed, "a row goes on where the last one ended"
        assert row.count > 0
        end = row.start + row.count
        assert len(sequence.blocks) * size >= end, "too few blocks"
        assert len(sequence.blocks) == -(-end // size), "blocks are given as tokens arrive"
        assert end <= len(sequence.tokens), "tokens that do not exist yet"
        assert row.samples == (end == len(sequence.tokens)), "a recomputed token is sampled again"
        for position in range(row.start, end):
            self._slots[sequence.blocks[position // size]][position % size] = sequence.tokens[
                position
            ]
        sequence.computed = end
        context = [self._slots[sequence.blocks[p // size]][p % size] for p in range(end)]
        assert context == sequence.tokens[:end], "the cache holds something else"
        if not row.samples:
            return 0
        if row.seq in self.nan_seqs:
            return -1
        token = next_token(sequence.tokens)
        sequence.tokens.append(token)
        return token
