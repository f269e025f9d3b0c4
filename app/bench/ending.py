"""EndingRunner: ends each sequence at the length that the workload wants."""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine.batch.plan import Runner, StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class _Handle:
    """A step of the inner runner. `last` says, for each row that samples, whether its token is the
    last of its sequence."""

    inner: object
    last: tuple[bool, ...]


class EndingRunner:
    """A `Runner` (`engine.batch.plan`) around another one. It ends each sequence at `min_tokens` by
    returning `eos` as its last token. So outputs have the lengths of the workload, and their steps
    cost what the model costs.

    One runner serves several cores, one after the other. At the first step of a new core (steps
    count from 1) it releases the sequences that the previous core left.

    Args:
        inner: the runner that computes the steps.
        eos: the token id that ends a sequence for the core.
    """

    def __init__(self, inner: Runner, eos: int) -> None:
        self._inner = inner
        self._eos = eos
        # For each sequence: the computed length from which its next token is its last.
        self._lengths: dict[int, int] = {}

    @property
    def depth(self) -> int:
        return self._inner.depth

    def submit(self, plan: StepPlan) -> object:
        if plan.step == 1:
            plan = replace(plan, released=tuple(self._lengths))
        for seq in plan.released:
            self._lengths.pop(seq, None)
        for new in plan.new:
            self._lengths[new.seq] = new.num_prompt_tokens + max(new.sampling.min_tokens, 1) - 1
        last = tuple(
            row.start + row.count >= self._lengths[row.seq] for row in plan.rows if row.samples
        )
        return _Handle(self._inner.submit(plan), last)

    def result(self, handle: object) -> StepResult:
        assert isinstance(handle, _Handle)
        result = self._inner.result(handle.inner)
        token_ids = tuple(
            self._eos if last and token >= 0 else token
            for token, last in zip(result.token_ids, handle.last, strict=True)
        )
        return replace(result, token_ids=token_ids)
