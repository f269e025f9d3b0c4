"""The batch as plain data: requests, the plan of a step, its tokens, and the Runner protocol."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

from engine.api.errors import ErrorInfo
from engine.api.lifecycle import FinishReason, RequestState, RequestTimings, Timings
from engine.api.logprobs import PromptLogprobs, TokenLogprobs
from engine.api.origin import Origin
from engine.api.sampling import SamplingParams
from engine.api.stream import Usage
from engine.api.telemetry import PhaseTimes, Recent
from engine.structure.grammar import Grammar

NOT_FINITE = -1
NOT_FOLLOWED = -2


@dataclass(slots=True, eq=False)
class Request:
    """One sequence, owned by the engine thread.

    One rule schedules it (vLLM V1): `num_computed_tokens` chases `num_tokens`. Progress counts when
    it is planned: a planned row that will sample adds a placeholder to `num_in_flight`, and
    `num_tokens` counts it, so that the next step can be planned before this one's token is known.

    Attributes:
        ordinal: number in the order of arrival; it breaks ties in the queue, smaller first.
        max_output_tokens: `sampling.max_tokens`, or as many as model length and pool leave.
        fork_of: a live request whose computed tokens this one reuses, as far as both prompts agree.
        grammar: the grammar of the output; None if there is none.
        cache_salt: salt of the prefix hashes under which it finds and publishes blocks.
        prompt_token_ids, output_token_ids: packed, because a list of Python integers takes ten
            times the memory.
        num_prompt_tokens: the number of `prompt_token_ids`.
        num_tokens: known tokens and placeholders for those in flight. This and `num_prompt_tokens`
            are stored because every step reads them for every sequence.
        num_committed_tokens: how many of `num_computed_tokens` were computed by steps that have
            ended.
        block_table: pool blocks that hold this sequence, in token order.
        reserved_blocks: blocks reserved for later tokens, the next one last.
        host_blocks: host pool blocks with its computed tokens while it is swapped out, in token
            order; else empty.
        block_hashes: chained hashes of the full blocks known so far (`engine.cache.manager`).
        num_published: how many leading blocks of the table are in the prefix index, or equal to a
            block that is.
        last_state: hash of the last snapshot of its state that was taken during decoding.
        stop_token_ids: those of `sampling`, as a set, because each output token is looked up in it.
        num_logprobs_sent: how many prompt tokens' log-probabilities were sent, counting the first
            token, which has none; 0 unless `sampling` asks for them.
        num_cached_tokens: prompt tokens taken from the prefix cache when it was first admitted.
        num_preemptions: how often it was preempted, whether recomputed or swapped.
        preempted_for: id of the request that needed the blocks at the last preemption; empty if
            there was another reason.
        token_gaps: seconds between one token and the next, for its last 513 tokens.
    """

    request_id: str
    ordinal: int
    prompt_token_ids: array[int]
    sampling: SamplingParams
    seed: int
    eos_token_ids: frozenset[int]
    max_output_tokens: int
    timings: RequestTimings
    origin: Origin = field(default_factory=Origin)
    priority: int = 0
    deadline: float | None = None
    fork_of: Request | None = None
    grammar: Grammar | None = None
    cache_salt: str = ""

    state: RequestState = RequestState.WAITING
    output_token_ids: array[int] = field(default_factory=lambda: array("I"))
    num_prompt_tokens: int = field(init=False)
    num_tokens: int = field(init=False)
    stop_token_ids: frozenset[int] = field(init=False)
    num_computed_tokens: int = 0
    num_committed_tokens: int = 0
    num_in_flight: int = 0
    block_table: list[int] = field(default_factory=list)
    reserved_blocks: list[int] = field(default_factory=list)
    host_blocks: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)
    num_published: int = 0
    last_state: bytes | None = None
    num_logprobs_sent: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    preempted_for: str = ""
    token_gaps: Recent = field(default_factory=lambda: Recent(512))
    finish_reason: FinishReason | None = None
    error: ErrorInfo | None = None

    def __post_init__(self) -> None:
        self.num_prompt_tokens = self.num_tokens = len(self.prompt_token_ids)
        self.stop_token_ids = frozenset(self.sampling.stop_token_ids)

    @property
    def num_known_tokens(self) -> int:
        """Tokens whose ids are known: prompt and committed output."""
        return self.num_tokens - self.num_in_flight

    @property
    def num_reusable_tokens(self) -> int:
        """The number of leading tokens that may come from the cache or from earlier steps.

        The last known token has to be computed for its logits, and so does each prompt token before
        one whose log-probability has not been sent yet.
        """
        if (
            self.sampling.prompt_logprobs is None
            or self.num_logprobs_sent >= self.num_prompt_tokens
        ):
            return self.num_known_tokens - 1
        return max(self.num_logprobs_sent - 1, 0)

    @property
    def max_tokens(self) -> int:
        """Most tokens of the sequence: prompt and `max_output_tokens`."""
        return self.num_prompt_tokens + self.max_output_tokens

    @property
    def gap(self) -> int:
        """Tokens still to compute: 1 while decoding, more in prefill and after a preemption."""
        return self.num_tokens - self.num_computed_tokens

    @property
    def is_prefill(self) -> bool:
        """Whether tokens before the newest one are still to compute."""
        gap = self.num_tokens - self.num_computed_tokens
        return gap > 1 or (gap == 1 and self.num_tokens == self.num_prompt_tokens)

    @property
    def wants_tokens(self) -> bool:
        """Whether another step may be planned for it: never past `max_output_tokens`.

        The last output token need not be computed. A prompt is computed even if no output is
        wanted.
        """
        return self.num_computed_tokens < self.num_tokens and (
            self.num_tokens < self.max_tokens or not self.max_output_tokens
        )

    def token_ids(self, start: int, stop: int) -> list[int]:
        """Known token ids at positions [start, stop)."""
        n = len(self.prompt_token_ids)
        if stop <= n:
            return self.prompt_token_ids[start:stop].tolist()
        if start >= n:
            return self.output_token_ids[start - n : stop - n].tolist()
        return [*self.prompt_token_ids[start:], *self.output_token_ids[: stop - n]]

    def ends_at(self, token_id: int) -> FinishReason | None:
        """Why the output ends with this token, which was just appended; None if it does not."""
        n = len(self.output_token_ids)
        if self.grammar is not None and token_id in self.grammar.ends:
            # A grammar that may continue past this token allows it only if nothing else is allowed.
            return FinishReason.STOP
        if n >= self.sampling.min_tokens:
            if token_id in self.stop_token_ids:
                return FinishReason.STOP
            if not self.sampling.ignore_eos and token_id in self.eos_token_ids:
                return FinishReason.STOP
        if n >= self.max_output_tokens:
            return FinishReason.LENGTH
        return None


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
        num_logprobs_sent: how many prompt tokens' log-probabilities were already sent. Rows return
            those of the tokens behind them, if `sampling.prompt_logprobs` is set.
    """

    seq: int
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    sampling: SamplingParams
    seed: int
    suppressed: tuple[int, ...]
    block_ids: tuple[int, ...]
    grammar: Grammar | None = None
    num_logprobs_sent: int = 0


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
    """Computes plans in the order in which they are started.

    Up to `depth` plans may be started before the first result is read. A runner of depth 1
    computes in lockstep; with depth 2, planning overlaps with computing.
    """

    @property
    def depth(self) -> int: ...

    def start_step(self, plan: StepPlan) -> object:
        """Start a step; returns the handle to pass to `result`."""
        ...

    def result(self, handle: object) -> StepResult:
        """Wait for a step. Raises what the device raised; the step's sequences are then lost.

        Raises:
            DeviceLostError: `start_step` raises it too.
        """
        ...


@runtime_checkable
class RepeatingRunner(Runner, Protocol):
    """A runner that knows the tokens and times of steps before they run: one that simulates."""

    def repeat(self, plan: StepPlan, most: int, until: float) -> tuple[int, Sequence[float]]:
        """Compute a plan of decodes, and then the same for the next token of each sequence, and so
        on: at most `most` steps, those that end before `until` and before any sequence's last
        token. The first begins at once, each other one when the one before it has ended.

        Returns:
            the token that each row got in each step, and when each step ended, in seconds on the
            engine's clock.
        """
        ...


@dataclass(frozen=True, slots=True)
class Stretch:
    """Steps that each gave the same sequences one token, taken at once (`EngineCore.repeat`).

    Attributes:
        request_ids: the sequences.
        start: when the first step began, seconds on the engine's clock.
        ends: when each step ended and the next began.
        bubbles: see `StepRecord.bubble_tokens`; the same in each step.
        given_slots, unused_slots: see `StepRecord`; for each step.
    """

    request_ids: tuple[str, ...]
    start: float
    ends: Sequence[float]
    bubbles: int
    given_slots: Sequence[int]
    unused_slots: Sequence[int]


@dataclass(frozen=True, slots=True)
class End:
    """The end of a request, and all of its token ids.

    Attributes:
        token_ids: prompt and output, which together are the context of the next turn.
    """

    reason: FinishReason
    usage: Usage
    timings: Timings
    token_ids: Sequence[int]
    error: ErrorInfo | None = None


class TokenOutput(NamedTuple):
    """New token ids of one request, and its end if they are its last.

    It is a tuple, like `Row`, because every step makes one for each sequence.

    Attributes:
        logprobs: one for each of `token_ids`; empty if the request asks for none.
        prompt: log-probabilities of prompt tokens, behind those already sent; None if the step
            found none.
    """

    request_id: str
    token_ids: tuple[int, ...]
    end: End | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt: PromptLogprobs | None = None


@dataclass(frozen=True, slots=True)
class StopFound:
    """A stop string ended in the text of output token number `num_output_tokens` (from 1)."""

    request_id: str
    num_output_tokens: int
