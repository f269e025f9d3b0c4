"""StepPlan: one step of the batch as plain data, and the two calls of a Runner that computes it."""

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
    """A sequence that the runner does not know: just admitted, or again after a preemption.

    Attributes:
        seq: the request's ordinal, which names it for the runner until it is released.
        token_ids: prompt and the outputs so far.
        num_prompt_tokens: how many of `token_ids` are prompt; the rest count for penalties.
        sampling: how to choose its tokens.
        seed: the only source of randomness, together with the output position.
        suppressed: token ids that may not be sampled before `sampling.min_tokens` outputs.
        block_ids: blocks that it holds already, from the cache, a copy or the host pool; their
            tokens are computed.
        grammar: what its output is to follow, from its first token; None if it is free.
        num_told: how many tokens of the prompt its owner was told the log-probabilities of. Rows
            tell of those behind them, if `sampling.prompt_logprobs` asks for it.
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
    count: int  # type: ignore[assignment]  # nobody misses the method of tuples
    new_blocks: tuple[int, ...]
    samples: bool
    prefill: bool


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step computes. The runner does `released`, then `swaps_out`, then `copies`, then
    `swaps_in`, then `new`, then `restores`, then `rows`, then `saves`.

    A block of a victim may be given away in the plan that takes it, so it is copied out before
    anything is written. A source of `copies` may have been given away too, so it is read before
    `swaps_in` and the rows write.

    The runner keeps token ids, block tables and sampling state by `seq`, so that a plan costs
    nothing for each token. A row whose first token is in flight reads it from the step before.

    Attributes:
        step: the step's number, from 1.
        rows: what is computed, decodes first.
        new: sequences that the runner is to learn before it computes the rows.
        released: sequences that the runner is to forget, because they ended or were preempted. It
            forgets them even if the step then fails. A sequence that it never learned, because the
            step that brought it failed, is no error.
        copies: (source, target) blocks to copy in every layer before the rows are computed.
        padding: what a padded batch would compute besides, for nothing: prompts filled up to the
            longest, and members that have ended. These rows belong to no sequence (`seq` is -1) and
            have no blocks. A runner does not compute them; one that simulates time may charge them.
        swaps_out: (block, host block) to copy to host memory in every layer.
        swaps_in: (host block, block) to copy back in every layer. The next plan may write to these
            host blocks: a runner copies in the order of the plans.
        restores: (snapshot, sequence) whose state is to be that of the snapshot.
        saves: (sequence, snapshot) that is to be the sequence's state after its row.
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
    """What a step gave.

    Attributes:
        token_ids: the token for each row that samples, in row order. It is `NOT_FINITE` where the
            logits were not finite, and `NOT_FOLLOWED` where what a grammar allows could not be
            found out. That ends that request alone.
        times: where the time went.
        logprobs: one for each of `token_ids`, None where the row asks for none or has no token;
            empty when no row asks.
        prompts: (row, of the tokens of its prompt behind the row's), for each row whose sequence
            asks for them and was not told all.
    """

    token_ids: tuple[int, ...]
    times: PhaseTimes = PhaseTimes()
    logprobs: tuple[TokenLogprobs | None, ...] = ()
    prompts: tuple[tuple[int, PromptLogprobs], ...] = ()


class Runner(Protocol):
    """Computes plans in the order they are submitted.

    `depth` plans may be submitted before the first result is asked for. A runner of depth 1
    computes in lockstep; with depth 2 planning overlaps with computing.
    """

    @property
    def depth(self) -> int: ...

    def submit(self, plan: StepPlan) -> object:
        """Start a step; returns the handle that `result` takes."""
        ...

    def result(self, handle: object) -> StepResult:
        """Wait for a step. Raises what the device raised; the step's sequences are then lost.

        Raises:
            DeviceLostError: `submit` raises it, too.
        """
        ...
