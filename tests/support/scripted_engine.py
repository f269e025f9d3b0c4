"""ScriptedEngine: an EngineClient whose replies are given, and whose time passes when told to."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from engine.admission import check_priority
from engine.cache.pool import BlockPool
from engine.client import ChatMessage, LoadRequest, Submission
from engine.config import EngineConfig
from engine.errors import (
    EngineError,
    ErrorInfo,
    InvalidRequestError,
    OverloadedError,
    UnavailableError,
)
from engine.knobs import KNOB_SPECS, Knobs, KnobValue
from engine.ledger import KnobLedger
from engine.plan import PhaseTimes, Row
from engine.request import FinishReason, RequestState, RequestTimings, SamplingParams
from engine.shape import ModelShape
from engine.snapshot import (
    EnginePhase,
    EngineStatus,
    Goodput,
    LatencyView,
    ModelCard,
    PinView,
    RequestView,
    Sharing,
    Snapshot,
    Totals,
)
from engine.stream import Context, Delta, Finish, RequestStream, Timings, Usage
from engine.telemetry import Distribution, Ring, Samples, StepRecord

# The policies, and the knobs that act under each and not under others. All plan alike here.
USES = {
    "stall_free": {"prefill_chunk", "max_partial_prefills"},
    "prefill_first": {"waiting_served_ratio", "max_waiting_tokens"},
    "static": {"static_batch_size", "static_fill"},
}
POLICIES = tuple(USES)
ORDER_USES = {"ageing"}
CONFIG = EngineConfig(
    num_blocks=256, max_model_len=1024, max_num_seqs=32, max_num_batched_tokens=512
)
SHAPE = ModelShape(
    num_params=2_000_000,
    num_active_params=1_500_000,
    hidden_size=128,
    vocab_size=2048,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    value_dim=32,
    windows=(None,) * 4,
    dtype_bytes=4,
)
MODEL_KEY = "scripted@1:float32"
LATENCY_WINDOW = 60.0
ENDED_KEPT = 20
MAX_CELLS = 2048


def echo(submission: Submission) -> str:
    return f"You said: {submission.messages[-1].content}"


@dataclass(slots=True, eq=False)
class _Sequence:
    """One request on its way through the script."""

    ordinal: int
    submission: Submission
    stream: RequestStream
    prompt: tuple[int, ...]
    script: list[str]
    ends: FinishReason
    timings: RequestTimings
    state: RequestState = RequestState.WAITING
    computed: int = 0
    cached: int = 0
    output: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    preemptions: int = 0
    reason: FinishReason | None = None
    error: ErrorInfo | None = None

    @property
    def total(self) -> int:
        """Tokens it will hold at most."""
        return len(self.prompt) + len(self.script)

    @property
    def gap(self) -> int:
        return len(self.prompt) + len(self.output) - self.computed


class _DrivingStream(RequestStream):
    """A stream whose reader advances the engine instead of waiting for another thread to."""

    def __init__(self, request_id: str, wake: Callable[[], None] | None, engine: ScriptedEngine):
        super().__init__(request_id, wake)
        self._engine = engine

    def wait(self, timeout: float | None = None) -> bool:
        while not super().wait(0):
            if not self._engine.advance():
                assert timeout is not None, "this stream will never have news"
                return False
        return True


class ScriptedEngine:
    """Gives each request the tokens of its scripted reply, one a step, stall-free as the real one.

    Blocks, prefix hits, budget and slots are accounted for; no model runs, no thread is started,
    and the clock moves by `step_seconds` a step. A token is a word with the blanks before it.

    Args:
        replies: by the text of the last message; what is missing is echoed. Or a function.
        drives_itself: waiting for a stream advances the engine, for readers that block.
        loaded: whether a model is there from the start; else call `load` and `ready`.

    Attributes:
        submissions: all that came, refused ones too.
        prompts: token ids by request id, of requests that were not refused.
        now: the virtual clock, seconds.
    """

    def __init__(
        self,
        replies: Mapping[str, str] | Callable[[Submission], str] = echo,
        *,
        config: EngineConfig = CONFIG,
        knobs: Knobs | None = None,
        step_seconds: float = 0.02,
        drives_itself: bool = False,
        loaded: bool = True,
    ) -> None:
        self._replies = replies
        self._config = config
        self._first_knobs = knobs or Knobs()
        self._step_seconds = step_seconds
        self._drives_itself = drives_itself
        self._lock = threading.RLock()
        self._status = EngineStatus(EnginePhase.EMPTY)
        self._loading: LoadRequest | None = None
        self._words: dict[str, int] = {}
        self._ordinals = 0
        # Requests wait through a change of models; all else starts anew with a model.
        self._waiting: list[_Sequence] = []
        self._wakes: dict[Callable[[], None], None] = {}
        self.submissions: list[Submission] = []
        self.prompts: dict[str, tuple[int, ...]] = {}
        self.loads: list[LoadRequest] = []
        self.now = 0.0
        self._reset()
        if loaded:
            self.load(LoadRequest("scripted"))
            self.ready()

    # What a front end may call.

    def submit(
        self, submission: Submission, wake: Callable[[], None] | None = None
    ) -> RequestStream:
        with self._lock:
            self.submissions.append(submission)
            request_id = submission.request_id
            stream = (
                _DrivingStream(request_id, wake, self)
                if self._drives_itself
                else RequestStream(request_id, wake)
            )
            try:
                sequence = self._accept(submission, stream)
            except EngineError as error:
                self._counts["refused"] += 1
                stream.end_unserved(FinishReason.ERROR, error.info())
            else:
                self._counts["requests"] += 1
                self._waiting.append(sequence)
                self._sort_waiting()
        self._wake()
        return stream

    def abort(self, request_id: str) -> None:
        with self._lock:
            for sequence in (*self._running, *self._waiting):
                if sequence.submission.request_id == request_id:
                    self._end(sequence, FinishReason.ABORT)
        self._wake()

    def set_priority(self, request_id: str, priority: int) -> None:
        check_priority(priority)
        with self._lock:
            for sequence in (*self._running, *self._waiting):
                if sequence.submission.request_id == request_id:
                    sequence.submission = replace(sequence.submission, priority=priority)
            self._sort_waiting()

    def status(self) -> EngineStatus:
        return self._status

    def snapshot(self) -> Snapshot | None:
        with self._lock:
            serves = self._loading is None or self._status.phase is EnginePhase.DRAINING
            return self._snapshot() if serves and self.loads else None

    def step_records(self, since: int) -> tuple[StepRecord, ...]:
        return self._records.since(since)

    def set_knobs(self, changes: Mapping[str, object], who: str) -> Knobs:
        with self._lock:
            self._check_loaded()
            return self._ledger.change(changes, who, self.now, self._step)

    def undo_knobs(self, who: str) -> Knobs:
        with self._lock:
            self._check_loaded()
            return self._ledger.undo(who, self.now, self._step)

    def pin(self, name: str, messages: tuple[ChatMessage, ...]) -> None:
        with self._lock:
            words = [("", *message.content.split(), "") for message in messages]
            tokens = sum(map(len, words))
            blocks = tokens // self._config.block_size
            self._pins[name] = PinView(name, tokens, blocks, computed=0)

    def unpin(self, name: str) -> None:
        with self._lock:
            self._pins.pop(name, None)

    def load(self, request: LoadRequest) -> None:
        with self._lock:
            self.loads.append(request)
            self._loading = request
            if number := len(self._running):
                who = "1 request ends" if number == 1 else f"{number} requests end"
                detail = f"{who} before {request.model} is loaded"
                self._status = replace(self._status, phase=EnginePhase.DRAINING, detail=detail)
            else:
                self._status = EngineStatus(EnginePhase.LOADING, request.model, "reading weights")

    def shutdown(self) -> None:
        with self._lock:
            for sequence in (*self._running, *self._waiting):
                gone = UnavailableError("the engine is shutting down").info()
                self._end(sequence, FinishReason.ERROR, gone)
            self._status = EngineStatus(EnginePhase.STOPPED)
        self._wake()

    # What a test tells it.

    def progress(self, loaded_bytes: int, total_bytes: int) -> None:
        """Loading got this far."""
        model = self._status.model
        detail = "reading weights"
        self._status = EngineStatus(EnginePhase.LOADING, model, detail, loaded_bytes, total_bytes)

    def ready(self) -> None:
        """Loading succeeded; what ran on the model before has ended."""
        with self._lock:
            assert self._loading is not None, "nothing is being loaded"
            for sequence in tuple(self._running):
                gone = UnavailableError("the model was unloaded").info()
                self._end(sequence, FinishReason.ERROR, gone)
            self._reset()
            self._status = EngineStatus(EnginePhase.READY, self._loading.model)
            self._loading = None
        self._wake()

    def fail(self, detail: str) -> None:
        """Loading failed."""
        with self._lock:
            self._status = EngineStatus(EnginePhase.FAILED, self._status.model, detail)
            for sequence in tuple(self._waiting):
                self._end(sequence, FinishReason.ERROR, UnavailableError(detail).info())
        self._wake()

    def advance(self, steps: int = 1) -> int:
        """Run up to `steps` steps, one token for each decoding request; returns how many ran."""
        for done in range(steps):
            with self._lock:
                ran = self._loading is None and self._run_step()
            self._wake()
            if not ran:
                return done
        return steps

    def finish_all(self) -> None:
        """Run until nothing is left that can run."""
        while self.advance():
            pass

    def preempt(self, request_id: str) -> None:
        """Take a running request's blocks; it goes back to the head of those of its priority."""
        with self._lock:
            sequence = self._find(request_id)
            self._running.remove(sequence)
            self._waiting.insert(0, sequence)
            self._sort_waiting()
            self._release(sequence)
            sequence.state = RequestState.PREEMPTED
            sequence.preemptions += 1
            sequence.computed = 0
            self._counts["preemptions"] += 1
            self._preempted.append(request_id)

    def break_request(self, request_id: str, message: str) -> None:
        """End one request with an error."""
        with self._lock:
            error = EngineError(message).info()
            self._end(self._find(request_id), FinishReason.ERROR, error)
        self._wake()

    # How it does it.

    def _reset(self) -> None:
        self._ledger = KnobLedger(self._first_knobs, self._config, POLICIES)
        self._pins: dict[str, PinView] = {}
        self._prefixes: dict[tuple[int, ...], int] = {}
        self._pool = BlockPool(self._config.num_blocks, self._evicted)
        self._running: list[_Sequence] = []
        self._ended: list[_Sequence] = []
        self._preempted: list[str] = []
        self._counts: Counter[str] = Counter()
        self._records: Ring[StepRecord] = Ring(4096)
        self._step = 0
        self._samples = {
            name: Samples() for name in ("ttft", "tpot", "itl", "queue", "e2e", "good")
        }

    def _sort_waiting(self) -> None:
        """Larger priorities first; the sort is stable, so equals keep their places."""
        self._waiting.sort(key=lambda sequence: -sequence.submission.priority)

    def _check_loaded(self) -> None:
        if self._loading is not None or not self.loads:
            raise UnavailableError("no model is loaded")

    def _find(self, request_id: str) -> _Sequence:
        for sequence in (*self._running, *self._waiting):
            if sequence.submission.request_id == request_id:
                return sequence
        raise LookupError(f"{request_id} neither runs nor waits")

    def _accept(self, submission: Submission, stream: RequestStream) -> _Sequence:
        if self._status.phase in (EnginePhase.EMPTY, EnginePhase.FAILED, EnginePhase.STOPPED):
            raise UnavailableError(f"no model is loaded: the engine is {self._status.phase}")
        limit = self._ledger.knobs.queue_limit
        if len(self._waiting) >= limit:
            raise OverloadedError(f"{limit} requests wait, as many as queue_limit allows")
        sampling = SamplingParams().override(submission.sampling)
        prompt = self._render(submission)
        longest = self._config.max_model_len - 1
        if len(prompt) > longest:
            raise InvalidRequestError(
                f"the prompt has {len(prompt)} tokens; at most {longest} fit", "prompt"
            )
        reply = (
            self._replies.get(submission.messages[-1].content, echo(submission))
            if isinstance(self._replies, Mapping)
            else self._replies(submission)
        )
        cuts = [reply.find(stop) for stop in sampling.stop if stop in reply]
        script = re.findall(r"\s*\S+\s*$|\s*\S+", reply[: min(cuts)] if cuts else reply) or [""]
        most = min(sampling.max_tokens or longest, self._config.max_model_len - len(prompt))
        ends = FinishReason.LENGTH if len(script) > most else FinishReason.STOP
        self._ordinals += 1
        self.prompts[submission.request_id] = prompt
        stream.num_prompt_tokens = len(prompt)
        timings = RequestTimings(arrival=self.now)
        return _Sequence(self._ordinals, submission, stream, prompt, script[:most], ends, timings)

    def _render(self, submission: Submission) -> tuple[int, ...]:
        """Token ids of the prompt: the context as it is, and what follows it word by word."""
        if submission.prompt_token_ids is not None:
            return submission.prompt_token_ids
        ids: list[int] = []
        first = 0
        context = submission.context
        if context is not None and context.model_key == MODEL_KEY:
            ids.extend(context.token_ids)
            first = context.num_messages
        for message in submission.messages[first:]:
            ids.extend(map(self._id, (f"<{message.role}>", *message.content.split(), "<end>")))
        return (*ids, self._id("<assistant>"))

    def _id(self, word: str) -> int:
        return self._words.setdefault(word, len(self._words))

    def _run_step(self) -> bool:
        knobs = self._ledger.knobs
        start = self.now
        admitted = self._admit(knobs)
        rows: list[tuple[_Sequence, int]] = []
        budget = 0 if knobs.paused else knobs.max_num_batched_tokens
        for sequence in sorted(self._running, key=lambda s: s.gap > 1):
            chunk = min(sequence.gap, budget)
            if knobs.prefill_chunk and sequence.gap > 1:
                chunk = min(chunk, knobs.prefill_chunk)
            if chunk:
                rows.append((sequence, chunk))
                budget -= chunk
        if not rows:
            return False
        self._step += 1
        self.now += self._step_seconds
        prefill = [(s, count) for s, count in rows if s.computed < len(s.prompt)]
        shape_rows = [Row(s.ordinal, s.computed, n, (), n == s.gap, n > 1) for s, n in rows]
        running, waiting = len(self._running), len(self._waiting)
        given, unused = self._slots(rows)
        finished = [s for s, count in rows if self._compute(s, count)]
        queried = sum(len(s.prompt) for s in admitted if not s.preemptions)
        hits = sum(s.cached for s in admitted if not s.preemptions)
        prefill_tokens = sum(count for _, count in prefill)
        decode_tokens = sum(count for _, count in rows) - prefill_tokens
        free, cached, used = self._pool.num_free, self._pool.num_cached, self._pool.num_used
        record = StepRecord(
            step=self._step,
            start=start,
            end=self.now,
            plan=self._step_seconds * 0.05,
            commit=self._step_seconds * 0.05,
            times=PhaseTimes(*(self._step_seconds * part for part in (0.05, 0.8, 0.05))),
            prefill_tokens=prefill_tokens,
            decode_tokens=decode_tokens,
            prefill_rows=len(prefill),
            decode_rows=len(rows) - len(prefill),
            padding_tokens=0,
            bubble_tokens=0,
            output_tokens=sum(row.samples for row in shape_rows),
            budget=knobs.max_num_batched_tokens,
            policy=knobs.policy,
            cost=SHAPE.cost(shape_rows),
            running=running,
            waiting=waiting,
            waiting_reason=self._waiting_reason(),
            preempted=tuple(self._preempted),
            admitted=tuple(s.submission.request_id for s in admitted),
            finished=tuple(s.submission.request_id for s in finished),
            prefix_queried_tokens=queried,
            prefix_hit_tokens=hits,
            blocks=self._pool.take_events(),
            free_blocks=free,
            cached_blocks=cached,
            used_blocks=used,
            given_slots=given,
            unused_slots=unused,
        )
        self._records.append(record)
        self._preempted.clear()
        self._counts["prefill_tokens"] += prefill_tokens
        self._counts["output_tokens"] += record.output_tokens
        self._counts["prompt_tokens"] += queried
        self._counts["prefix_queried_tokens"] += queried
        self._counts["prefix_hit_tokens"] += hits
        return True

    def _slots(self, rows: list[tuple[_Sequence, int]]) -> tuple[int, int]:
        """Token slots of the blocks in use once the rows are computed, and the empty ones."""
        size = self._config.block_size
        ends = {sequence: sequence.computed for sequence in self._running}
        for sequence, count in rows:
            ends[sequence] += count
        missing = sum(self._config.blocks_for(end) - len(s.blocks) for s, end in ends.items())
        return (self._pool.num_used + missing) * size, sum(-end % size for end in ends.values())

    def _admit(self, knobs: Knobs) -> list[_Sequence]:
        admitted: list[_Sequence] = []
        while self._waiting and not self._obstacle(self._waiting[0]):
            sequence = self._waiting.pop(0)
            hit = self._shared_blocks(sequence) if knobs.prefix_caching else []
            for block in hit:
                self._pool.share(block, sequence.ordinal)
            sequence.blocks = hit
            sequence.computed = len(hit) * self._config.block_size
            if sequence.timings.first_scheduled is None:
                sequence.cached = sequence.computed
                sequence.timings.first_scheduled = self.now
                self._sample("queue", sequence.timings.queue)
            sequence.state = RequestState.RUNNING
            self._running.append(sequence)
            admitted.append(sequence)
        return admitted

    def _obstacle(self, sequence: _Sequence) -> str:
        knobs = self._ledger.knobs
        if knobs.paused:
            return "paused"
        if knobs.draining:
            return "draining"
        if len(self._running) >= knobs.max_num_seqs:
            return f"no slot: {len(self._running)} of {knobs.max_num_seqs} taken"
        need = self._config.blocks_for(sequence.total)
        promised = sum(self._config.blocks_for(s.total) - len(s.blocks) for s in self._running)
        left = self._pool.num_available - promised
        return f"no blocks: it needs {need}, {left} are left" if need > left else ""

    def _waiting_reason(self) -> str:
        if not self._waiting:
            return ""
        return "no model" if self._loading else self._obstacle(self._waiting[0])

    def _shared_blocks(self, sequence: _Sequence) -> list[int]:
        """Blocks that hold the prompt's beginning; one token at least is left to compute."""
        size = self._config.block_size
        blocks: list[int] = []
        for end in range(size, len(sequence.prompt), size):
            block = self._prefixes.get(sequence.prompt[:end])
            if block is None:
                break
            blocks.append(block)
        return blocks

    def _evicted(self, block: int) -> None:
        self._prefixes = {key: b for key, b in self._prefixes.items() if b != block}
        self._counts["evictions"] += 1

    def _compute(self, sequence: _Sequence, count: int) -> bool:
        """Compute `count` tokens; whether that ended the request."""
        samples = count == sequence.gap
        sequence.computed += count
        missing = self._config.blocks_for(sequence.computed) - len(sequence.blocks)
        sequence.blocks += self._pool.give(missing, sequence.ordinal)
        self._publish(sequence)
        if not samples:
            return False
        if not sequence.output:
            sequence.timings.first_token = self.now
            self._sample("ttft", sequence.timings.ttft)
        elif sequence.timings.last_token is not None:
            sequence.gaps.append(self.now - sequence.timings.last_token)
            self._sample("itl", sequence.gaps[-1])
        sequence.timings.last_token = self.now
        text = sequence.script[len(sequence.output)]
        # Sampled ids differ from those of the same words as text, so that a lost context shows.
        sequence.output.append(self._id(f"sampled {text}"))
        if len(sequence.output) == len(sequence.script):
            self._end(sequence, sequence.ends, text=text)
            return True
        sequence.stream.put(Delta(text, 1))
        self._news(sequence.stream)
        return False

    def _publish(self, sequence: _Sequence) -> None:
        size = self._config.block_size
        ids = (*sequence.prompt, *sequence.output)
        for index in range(sequence.computed // size):
            key = ids[: (index + 1) * size]
            if key not in self._prefixes and sequence.blocks[index] not in self._prefixes.values():
                self._prefixes[key] = sequence.blocks[index]
                self._pool.keep(sequence.blocks[index])

    def _release(self, sequence: _Sequence) -> None:
        self._pool.release(reversed(sequence.blocks), sequence.ordinal)
        sequence.blocks = []

    def _end(
        self,
        sequence: _Sequence,
        reason: FinishReason,
        error: ErrorInfo | None = None,
        text: str = "",
    ) -> None:
        queue = self._running if sequence.state is RequestState.RUNNING else self._waiting
        queue.remove(sequence)
        self._release(sequence)
        sequence.state = RequestState.FINISHED
        sequence.reason, sequence.error = reason, error
        sequence.timings.finished = self.now
        outcomes = {FinishReason.ABORT: "aborted", FinishReason.ERROR: "failed"}
        self._counts[outcomes.get(reason, "finished")] += 1
        made = len(sequence.output)
        tpot = sequence.timings.tpot(made)
        self._sample("tpot", tpot)
        if reason in (FinishReason.STOP, FinishReason.LENGTH):
            knobs, ttft = self._ledger.knobs, sequence.timings.ttft or 0.0
            met = ttft * 1000 <= knobs.ttft_target_ms and (tpot or 0) * 1000 <= knobs.tpot_target_ms
            self._sample("good", float(met))
        self._sample("e2e", sequence.timings.e2e)
        ids = (*sequence.prompt, *sequence.output, self._id("<end>"))
        num_messages = len(sequence.submission.messages) + 1
        finish = Finish(
            reason,
            Usage(len(sequence.prompt), made, sequence.cached),
            Timings.of(sequence.timings, made),
            error,
            None if error else Context(MODEL_KEY, ids, num_messages),
        )
        sequence.stream.put(Delta(text, 1 if text else 0, finish))
        self._news(sequence.stream)
        self._ended = [sequence, *self._ended[: ENDED_KEPT - 1]]

    def _sample(self, name: str, value: float | None) -> None:
        if value is not None:
            self._samples[name].add(self.now, value)

    def _news(self, stream: RequestStream) -> None:
        if stream.wake is not None:
            self._wakes[stream.wake] = None

    def _wake(self) -> None:
        """Outside the lock: a reader may call back at once."""
        with self._lock:
            wakes, self._wakes = tuple(self._wakes), {}
        for wake in wakes:
            wake()

    def _snapshot(self) -> Snapshot:
        running = len(self._running)
        knobs = self._ledger.knobs
        excess = running - knobs.max_num_seqs
        users = {"policy": (knobs.policy, USES[knobs.policy]), "order": (knobs.order, ORDER_USES)}
        effective: dict[str, tuple[KnobValue, str]] = {}
        for spec in KNOB_SPECS:
            who, uses = users.get(spec.acts, ("", {spec.name}))
            if spec.name not in uses:
                effective[spec.name] = (getattr(knobs, spec.name), f"ignored by {who}")
        if excess > 0:
            effective["max_num_seqs"] = (running, f"{excess} more than asked for still run")
        shown = (*self._running, *self._waiting, *self._ended)
        latency: dict[str, Distribution] = {
            name: samples.over(self.now - LATENCY_WINDOW) for name, samples in self._samples.items()
        }
        means = (s.timings.tpot(len(s.output)) for s in self._running)
        so_far = [mean for mean in means if mean is not None]
        latency["tpot"] = self._samples["tpot"].over(self.now - LATENCY_WINDOW, so_far)
        good = latency.pop("good")
        return Snapshot(
            time=self.now,
            step=self._step,
            config=self._config,
            model=ModelCard(
                name=self._status.model,
                architecture="ScriptedForCausalLM",
                num_params=SHAPE.num_params,
                dtype=self._config.dtype,
                device=self._config.device,
                attention="scripted",
                max_model_len=self._config.max_model_len,
                weight_bytes=SHAPE.weight_bytes,
                kv_bytes_per_token=SHAPE.kv_bytes_per_token,
            ),
            requests=tuple(map(self._view, shown)),
            num_running=running,
            num_waiting=len(self._waiting),
            waiting_reason=self._waiting_reason(),
            blocks=self._pool.map(MAX_CELLS),
            knobs=self._ledger.states(effective),
            knob_history=self._ledger.history,
            latency=LatencyView(LATENCY_WINDOW, **latency),
            totals=Totals(**self._counts),
            sharing=tuple(
                Sharing(tuple(sorted(ordinals)), blocks)
                for ordinals, blocks in Counter(map(tuple, self._pool.sharing())).most_common()
            ),
            pins=tuple(self._pins.values()),
            goodput=Goodput(
                LATENCY_WINDOW,
                knobs.ttft_target_ms / 1000,
                knobs.tpot_target_ms / 1000,
                good.mean,
                good.mean * good.count / LATENCY_WINDOW if good.count else 0.0,
            ),
        )

    def _view(self, sequence: _Sequence) -> RequestView:
        times, made = sequence.timings, len(sequence.output)
        waits = sequence.state in (RequestState.WAITING, RequestState.PREEMPTED)
        return RequestView(
            request_id=sequence.submission.request_id,
            ordinal=sequence.ordinal,
            origin=sequence.submission.origin,
            state=sequence.state,
            prefilling=sequence.state is RequestState.RUNNING and sequence.gap > 1,
            wait_reason=(self._obstacle(sequence) or "it is next") if waits else "",
            priority=sequence.submission.priority,
            prompt_tokens=len(sequence.prompt),
            cached_tokens=sequence.cached,
            computed_tokens=sequence.computed,
            output_tokens=made,
            max_output_tokens=len(sequence.script),
            blocks=len(sequence.blocks),
            queue=times.queue,
            ttft=times.ttft,
            tpot=times.tpot(made),
            itl_p99=Distribution.of(sequence.gaps).p99 if sequence.gaps else None,
            preemptions=sequence.preemptions,
            finish_reason=sequence.reason,
            error=sequence.error.message if sequence.error else "",
        )
