"""Request: one sequence's way through the engine, with its sampling parameters and timings."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum

from engine.errors import ErrorInfo, InvalidRequestError

MAX_STOPS = 16
MAX_BIASES = 1024
MAX_LOGPROBS = 20
_DECIMAL = re.compile("[0-9]{1,18}")


class FinishReason(StrEnum):
    """Why a request ended. Every request ends once, with one of these."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class RequestState(StrEnum):
    """Where a request stands: waiting, running, finished; a preempted one waits again."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen and when the output ends.

    Attributes:
        temperature: 0 is greedy and exact; above, logits are divided by it.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set of tokens whose probability reaches p (nucleus sampling).
        min_p: keep tokens at least this likely relative to the most likely one.
        repetition_penalty: over tokens of prompt and output, multiplicative (CTRL, section 4.1).
        presence_penalty: subtracted once for each token already in the output.
        frequency_penalty: subtracted for each occurrence in the output.
        logit_bias: (token id, bias) pairs, biases from -100 to 100, added to the model's logits
            before all else, greedy or not; -100 bans in practice. `override` takes a map, whose
            keys may be strings.
        logprobs: how many of the likeliest tokens come with each output token, beside its own
            log-probability and rank (`engine.logprobs.TokenLogprobs`); None gives nothing.
        seed: with the output position, the only source of randomness; None draws one at submit.
        min_tokens: no end of sequence and no stop before this many output tokens.
        max_tokens: most output tokens; None is all that fits.
        stop: strings that end the output; they are not part of it.
        stop_token_ids: token ids that end the output.
        ignore_eos: go on past the model's end-of-sequence tokens.

    Raises:
        InvalidRequestError: a value outside its range; `param` names the field.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    seed: int | None = None
    min_tokens: int = 0
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        self._check_number("temperature", 0.0, 100.0)
        self._check_number("top_p", 0.0, 1.0, above=True)
        self._check_number("min_p", 0.0, 1.0)
        self._check_number("repetition_penalty", 0.0, 100.0, above=True)
        self._check_number("presence_penalty", -2.0, 2.0)
        self._check_number("frequency_penalty", -2.0, 2.0)
        self._check_integer("top_k", 0, 2**31 - 1)
        self._check_integer("min_tokens", 0, 2**31 - 1)
        if self.logprobs is not None:
            self._check_integer("logprobs", 0, MAX_LOGPROBS)
        if self.seed is not None:
            self._check_integer("seed", 0, 2**64 - 1)
        if self.max_tokens is not None:
            self._check_integer("max_tokens", 1, 2**31 - 1)
            if self.min_tokens > self.max_tokens:
                raise InvalidRequestError(
                    f"min_tokens is {self.min_tokens}; it must be at most max_tokens "
                    f"({self.max_tokens})",
                    "min_tokens",
                )
        self._check_stops()
        self._check_bias()
        if not isinstance(self.ignore_eos, bool):
            raise InvalidRequestError(
                f"ignore_eos is {self.ignore_eos!r}; it must be true or false", "ignore_eos"
            )

    def override(self, changes: Mapping[str, object]) -> SamplingParams:
        """These parameters with some replaced, as a request names them.

        Raises:
            InvalidRequestError: an unknown name, or a value outside its range.
        """
        known = {f.name for f in fields(self)}
        for name in changes:
            if name not in known:
                raise InvalidRequestError(
                    f"{name} is no sampling parameter; allowed are {', '.join(sorted(known))}", name
                )
        # JSON and TOML have lists and maps only, and JSON's keys are strings.
        clean = {k: tuple(v) if isinstance(v, list) else v for k, v in changes.items()}
        if isinstance(bias := clean.get("logit_bias"), Mapping):
            clean["logit_bias"] = tuple((_token_id(key), value) for key, value in bias.items())
        return replace(self, **clean)  # type: ignore[arg-type]  # __post_init__ checks the values

    def _check_number(self, name: str, low: float, high: float, *, above: bool = False) -> None:
        value = getattr(self, name)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        # NaN fails the comparison, and an integer that no float can hold does not raise in it.
        if not number or not low <= value <= high or (above and value == low):
            bound = f"above {low:g} and at most {high:g}" if above else f"from {low:g} to {high:g}"
            raise InvalidRequestError(f"{name} is {value!r}; it must be a number {bound}", name)

    def _check_integer(self, name: str, low: int, high: int) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise InvalidRequestError(
                f"{name} is {value!r}; it must be an integer from {low} to {high}", name
            )

    def _check_stops(self) -> None:
        if not isinstance(self.stop, tuple) or not all(isinstance(s, str) and s for s in self.stop):
            raise InvalidRequestError(
                f"stop is {self.stop!r}; it must be a list of non-empty strings", "stop"
            )
        if len(self.stop) > MAX_STOPS:
            raise InvalidRequestError(
                f"stop has {len(self.stop)} strings; at most {MAX_STOPS} are allowed", "stop"
            )
        ids = self.stop_token_ids
        if not isinstance(ids, tuple) or not all(type(i) is int and i >= 0 for i in ids):
            raise InvalidRequestError(
                f"stop_token_ids is {ids!r}; it must be a list of token ids", "stop_token_ids"
            )

    def _check_bias(self) -> None:
        pairs = self.logit_bias
        if not isinstance(pairs, tuple) or not all(type(p) is tuple and len(p) == 2 for p in pairs):
            raise InvalidRequestError(
                f"logit_bias is {pairs!r}; it must be a map of token ids to numbers", "logit_bias"
            )
        if len(pairs) > MAX_BIASES:
            raise InvalidRequestError(
                f"logit_bias has {len(pairs)} entries; at most {MAX_BIASES} are allowed",
                "logit_bias",
            )
        seen: set[int] = set()
        for token_id, bias in pairs:
            if type(token_id) is not int or token_id < 0:
                raise InvalidRequestError(
                    f"logit_bias has the key {token_id!r}; it must be a token id", "logit_bias"
                )
            if token_id in seen:
                raise InvalidRequestError(
                    f"logit_bias names token id {token_id} twice; once is allowed", "logit_bias"
                )
            seen.add(token_id)
            # NaN fails the comparison.
            if type(bias) not in (int, float) or not -100 <= bias <= 100:
                raise InvalidRequestError(
                    f"logit_bias of token id {token_id} is {bias!r}; it must be a number from -100 "
                    "to 100",
                    "logit_bias",
                )


def _token_id(key: object) -> object:
    return int(key) if isinstance(key, str) and _DECIMAL.fullmatch(key) else key


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Who asked, and from where."""

    user: str = "local"
    conversation: str = ""
    source: str = "screen"
    title: str = ""


@dataclass(slots=True)
class RequestTimings:
    """A request's times, in seconds on the engine's one monotonic clock.

    Queue, prefill and decode time are defined as vLLM defines them: arrival to first scheduled,
    first scheduled to first token, first to last token.
    """

    arrival: float
    first_scheduled: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    finished: float | None = None

    @property
    def queue(self) -> float | None:
        return None if self.first_scheduled is None else self.first_scheduled - self.arrival

    @property
    def prefill(self) -> float | None:
        if self.first_token is None or self.first_scheduled is None:
            return None
        return self.first_token - self.first_scheduled

    @property
    def decode(self) -> float | None:
        if self.first_token is None or self.last_token is None:
            return None
        return self.last_token - self.first_token

    @property
    def ttft(self) -> float | None:
        """Time to first token: from arrival."""
        return None if self.first_token is None else self.first_token - self.arrival

    @property
    def e2e(self) -> float | None:
        return None if self.finished is None else self.finished - self.arrival

    def tpot(self, num_output_tokens: int) -> float | None:
        """Time per output token after the first; None below two tokens, which have no gap."""
        end = self.finished if self.finished is not None else self.last_token
        if self.first_token is None or end is None or num_output_tokens < 2:
            return None
        return (end - self.first_token) / (num_output_tokens - 1)


@dataclass(slots=True, eq=False)
class Request:
    """One sequence, owned by the engine thread.

    One rule schedules it (vLLM V1): `num_computed_tokens` chases `num_tokens`. Progress counts when
    it is planned: a planned row that will sample adds a placeholder to `num_in_flight`, and
    `num_tokens` counts it, so that the next step can be planned before this one's token is known.

    Attributes:
        ordinal: order of arrival; ties in priority go to the smaller.
        max_output_tokens: `sampling.max_tokens`, or what model length and pool leave.
        fork_of: a live request whose computed tokens this one starts from, as far as theirs agree.
        num_prompt_tokens: of `prompt_token_ids`.
        num_tokens: known tokens and placeholders for those in flight. Kept as a number, as is the
            prompt's, since every step reads it for every sequence.
        num_committed_tokens: of `num_computed_tokens`, those whose step has ended.
        block_table: pool blocks that hold this sequence, in token order.
        reserved_blocks: blocks set aside for tokens to come, the next one last.
        block_hashes: chained hashes of the full blocks known so far (`engine.cache.prefix`).
        num_published: leading blocks of the table that are in the prefix index, or equal to one
            that is.
        num_cached_tokens: prompt tokens taken from the prefix cache when first admitted.
        num_preemptions: times it lost its blocks and was recomputed.
        token_gaps: seconds between its last tokens.
    """

    request_id: str
    ordinal: int
    prompt_token_ids: list[int]
    sampling: SamplingParams
    seed: int
    eos_token_ids: frozenset[int]
    max_output_tokens: int
    timings: RequestTimings
    origin: Origin = field(default_factory=Origin)
    priority: int = 0
    deadline: float | None = None
    parent: str | None = None
    attempt: int = 1
    fork_of: Request | None = None

    state: RequestState = RequestState.WAITING
    output_token_ids: list[int] = field(default_factory=list)
    num_prompt_tokens: int = field(init=False)
    num_tokens: int = field(init=False)
    num_computed_tokens: int = 0
    num_committed_tokens: int = 0
    num_in_flight: int = 0
    block_table: list[int] = field(default_factory=list)
    reserved_blocks: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)
    num_published: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    token_gaps: deque[float] = field(default_factory=lambda: deque(maxlen=512))
    finish_reason: FinishReason | None = None
    error: ErrorInfo | None = None

    def __post_init__(self) -> None:
        self.num_prompt_tokens = self.num_tokens = len(self.prompt_token_ids)

    @property
    def num_known_tokens(self) -> int:
        """Tokens whose ids are known: prompt and committed output."""
        return self.num_tokens - self.num_in_flight

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
        return self.gap > 1 or self.num_tokens == self.num_prompt_tokens

    @property
    def wants_tokens(self) -> bool:
        """Whether a step may still be planned: no more tokens than `max_output_tokens` in all."""
        return self.num_computed_tokens < self.num_tokens < self.max_tokens

    def token_ids(self, start: int, stop: int) -> list[int]:
        """Known token ids at positions [start, stop)."""
        n = len(self.prompt_token_ids)
        if stop <= n:
            return self.prompt_token_ids[start:stop]
        if start >= n:
            return self.output_token_ids[start - n : stop - n]
        return self.prompt_token_ids[start:] + self.output_token_ids[: stop - n]

    def ends_at(self, token_id: int) -> FinishReason | None:
        """Whether the output ends with this token, just appended."""
        n = len(self.output_token_ids)
        if n >= self.sampling.min_tokens:
            if token_id in self.sampling.stop_token_ids:
                return FinishReason.STOP
            if not self.sampling.ignore_eos and token_id in self.eos_token_ids:
                return FinishReason.STOP
        if n >= self.max_output_tokens:
            return FinishReason.LENGTH
        return None
