"""StepPlan: one step of the batch as plain data, and the two calls of a Runner that computes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from engine.logprobs import TokenLogprobs
from engine.request import SamplingParams


@dataclass(frozen=True, slots=True)
class NewSequence:
    """A sequence that the runner does not know: admitted first, or again after a preemption.

    Attributes:
        seq: the request's ordinal, its name for the runner until released.
        token_ids: prompt and the outputs so far.
        num_prompt_tokens: how many of `token_ids` are prompt; the rest count for penalties.
        sampling: how to choose its tokens.
        seed: with the output position, the only source of randomness.
        suppressed: token ids that may not be sampled before `sampling.min_tokens` outputs.
        block_ids: blocks held already, shared from the prefix cache; their tokens are computed.
    """

    seq: int
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    sampling: SamplingParams
    seed: int
    suppressed: tuple[int, ...]
    block_ids: tuple[int, ...]


class Row(NamedTuple):
    """One sequence's part of a step: compute tokens [start, start + count).

    A tuple: every step makes one for each sequence; a frozen dataclass takes four times as long.

    Attributes:
        new_blocks: blocks appended to the sequence's table for this step.
        samples: whether the logits of the last token give the next token.
        prefill: whether these are prompt (or recomputed) tokens, for counting.
    """

    seq: int
    start: int
    count: int  # type: ignore[assignment]  # nobody misses the method of tuples
    new_blocks: tuple[int, ...]
    samples: bool
    prefill: bool


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step computes. Order: `released`, then `copies`, then `new`, then `rows`.

    The runner keeps token ids, block tables and sampling state by `seq`, so that a plan costs
    nothing for each token. A row whose first token is in flight reads it from the step before.

    Attributes:
        step: counts from 1.
        rows: decodes first.
        new: sequences that the runner is to learn before it computes the rows.
        released: sequences it is to forget, ended or preempted, also if the step then fails. One
            that it never learned, because the step that brought it failed, is no error.
        copies: (source, target) blocks to copy in every layer first.
        padding: what a padded batch would compute besides, for nothing: prompts filled up to the
            longest, and members that have ended. Of no sequence (`seq` is -1) and without blocks.
            Runners leave it out; one that costs time may charge it.
    """

    step: int
    rows: tuple[Row, ...]
    new: tuple[NewSequence, ...] = ()
    released: tuple[int, ...] = ()
    copies: tuple[tuple[int, int], ...] = ()
    padding: tuple[Row, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(row.count for row in self.rows)


@dataclass(frozen=True, slots=True)
class PhaseTimes:
    """Seconds of a step inside the runner: building inputs, the forward pass, sampling."""

    prepare: float = 0.0
    forward: float = 0.0
    sample: float = 0.0


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step gave.

    Attributes:
        token_ids: the token for each row that samples, in row order; -1 where the logits were not
            finite, which ends that request alone.
        times: where the time went.
        logprobs: for each of `token_ids`, None where the row asks for none or has no token; empty
            when no row asks.
    """

    token_ids: tuple[int, ...]
    times: PhaseTimes = PhaseTimes()
    logprobs: tuple[TokenLogprobs | None, ...] = ()


class Runner(Protocol):
    """Computes plans in the order they are submitted.

    `depth` plans may be submitted before the first result is asked for: 1 computes in lockstep, 2
    lets planning overlap with computing.
    """

    @property
    def depth(self) -> int: ...

    def submit(self, plan: StepPlan) -> object:
        """Start a step; the handle is for `result`."""
        ...

    def result(self, handle: object) -> StepResult:
        """Wait for a step. Raises what the device raised; the step's sequences are then lost."""
        ...
