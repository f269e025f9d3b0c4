"""Request: one sequence's way through the engine."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from engine.api.errors import ErrorInfo
from engine.api.lifecycle import FinishReason, RequestState, RequestTimings
from engine.api.origin import Origin
from engine.api.sampling import SamplingParams
from engine.api.telemetry import Recent
from engine.structure.grammar import Grammar


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
        num_told: how many prompt tokens' log-probabilities were sent, counting the first token,
            which has none; 0 unless `sampling` asks for them.
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
    num_told: int = 0
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
        """How many leading tokens may come from the cache or from what was computed before.

        The last known token has to be computed for its logits, and so does each prompt token before
        one whose log-probability has not been sent yet.
        """
        if self.sampling.prompt_logprobs is None or self.num_told >= self.num_prompt_tokens:
            return self.num_known_tokens - 1
        return max(self.num_told - 1, 0)

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
