"""StepPlan: one step of the batch as plain data, and the Runner protocol that computes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from engine.api.logprobs import PromptLogprobs, TokenLogprobs
from engine.api.sampling import SamplingParams
from engine.api.telemetry import PhaseTimes
from engine.structure.grammar import Grammar

NOT_FINITE = -1
NOT_FOLLOWED = -2


@dataclass(frozen=True, slots=True)
class NewSequence:
    """A sequence new to the runner: just admitted, or again after a preemption.

    Attributes:
        seq: the request's ordinal, by which the runner knows the sequence until it is released.
        token_ids: prompt and the outputs so far.
        num_prompt_tokens: how many of `token_ids` are prompt; the rest count for penalties.
        sampling: how to choose its tokens.
        seed: the only source of randomness, together with the output position.
        suppressed: token ids that may not be sampled before `sampling.min_tokens` outputs.
        block_ids: blocks already in its table, from the cache, a copy or the host pool; their
            tokens are computed.
        grammar: the grammar of its output, from the first output token; None if there is none.
        num_told: how many prompt tokens' log-probabilities were already sent. Rows return those of
            the tokens behind them, if `sampling.prompt_logprobs` is set.
    """

    seq: int
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    sampling: SamplingParams
    seed: int
    suppressed: tuple[int, ...]
    block_ids: tuple[int, ...]
    grammar: Grammar | None = None
    num_told: int = 0


class Row(NamedTuple):
    """One sequence's part of a step: compute tokens [start, start + count).

    It is a tuple because every step makes one for each sequence, and a frozen dataclass takes four
    times as long to make.

    Attributes:
        new_blocks: blocks appended to the sequence's table for this step.
        samples: whether the logits of the row's last token give the sequence's next token.
        prefill: whether these are prompt (or recomputed) tokens, for counting.
    """

    seq: int
    start: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not used
    new_blocks: tuple[int, ...]
    samples: bool
    prefill: bool


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step of the batch. The runner does `released`, then `swaps_out`, then `copies`, then
    `swaps_in`, then `new`, then `restores`, then `rows`, then `saves`.

    A plan may preempt a request and reuse its blocks at once, so they are copied out before
    anything is written. A source of `copies` may also have a new owner, so it is read before
    `swaps_in` and the rows write.

    The runner keeps token ids, block tables and sampling state by `seq`, so that a plan costs
    nothing for each token. A row whose first token is in flight reads it from the step before.

    Attributes:
        step: the step's number, from 1.
        rows: what is computed, decodes first.
        new: sequences to add before the rows are computed.
        released: sequences to remove, because they ended or were preempted, even if the step then
            fails. One that the runner does not know, because the step that added it failed, is no
            error.
        copies: (source, target) blocks to copy in every layer before the rows are computed.
        padding: what a padded batch would compute in vain: prompts padded to the longest, and
            members that have ended. These rows belong to no sequence (`seq` is -1) and have no
            blocks. A runner skips them; one that simulates time may charge for them.
        swaps_out: (block, host block) to copy to host memory in every layer.
        swaps_in: (host block, block) to copy back in every layer. The next plan may write to these
            host blocks: a runner copies in the order of the plans.
        restores: (snapshot, sequence): the snapshot to copy into the sequence's state.
        saves: (sequence, snapshot): the snapshot to write with the sequence's state after its row.
    """

    step: int
    rows: tuple[Row, ...]
    new: tuple[NewSequence, ...] = ()
    released: tuple[int, ...] = ()
    copies: tuple[tuple[int, int], ...] = ()
    padding: tuple[Row, ...] = ()
    swaps_out: tuple[tuple[int, int], ...] = ()
    swaps_in: tuple[tuple[int, int], ...] = ()
    restores: tuple[tuple[int, int], ...] = ()
    saves: tuple[tuple[int, int], ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(row.count for row in self.rows)


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of a step.

    Attributes:
        token_ids: the token for each row that samples, in row order. It is `NOT_FINITE` where the
            logits were not finite, and `NOT_FOLLOWED` where the grammar's allowed tokens could not
            be determined. Only that request ends.
        times: time spent in each phase.
        logprobs: one for each of `token_ids`, None where the row needs none or has no token; empty
            when no row needs any.
        prompts: (row, log-probabilities of the prompt tokens behind the row's), for each row whose
            sequence asks for them and has not received all.
    """

    token_ids: tuple[int, ...]
    times: PhaseTimes = PhaseTimes()
    logprobs: tuple[TokenLogprobs | None, ...] = ()
    prompts: tuple[tuple[int, PromptLogprobs], ...] = ()


class Runner(Protocol):
    """Computes plans in the order in which they are submitted.

    Up to `depth` plans may be submitted before the first result is read. A runner of depth 1
    computes in lockstep; with depth 2, planning overlaps with computing.
    """

    @property
    def depth(self) -> int: ...

    def submit(self, plan: StepPlan) -> object:
        """Start a step; returns the handle to pass to `result`."""
        ...

    def result(self, handle: object) -> StepResult:
        """Wait for a step. Raises what the device raised; the step's sequences are then lost.

        Raises:
            DeviceLostError: `submit` raises it too.
        """
        ...
