"""The host: two threads, a mailbox, models that come and go, and streams that always end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from engine.client import ChatMessage, LoadRequest, Submission
from engine.config import EngineConfig
from engine.errors import (
    EngineError,
    ErrorInfo,
    InvalidConfigError,
    InvalidRequestError,
    ModelError,
    UnavailableError,
)
from engine.host import EngineHost
from engine.knobs import Knobs
from engine.loading import LoadedModel, Progress
from engine.plan import StepPlan
from engine.request import FinishReason, SamplingParams
from engine.snapshot import EnginePhase, ModelCard, PinView, Snapshot
from engine.stream import Context, Delta, Finish, RequestStream
from tests.support.harness import EOS, SHAPE
from tests.support.scripted_runner import VOCAB, ScriptedRunner, reference

TIMEOUT = 30.0


class WordDetokenizer:
    def __init__(self, name: str) -> None:
        self._name = name

    def push(self, token_id: int) -> str:
        return f"{self._name}{token_id} "

    def flush(self) -> str:
        return ""


@dataclass
class WordCodec:
    """A chat of numbers: each word is a token id. Replies say which model they come from.

    Attributes:
        before_encode: called on the text thread with the messages.
    """

    model_key: str
    before_encode: Callable[[Sequence[ChatMessage]], None] = lambda messages: None

    def encode(self, messages: Sequence[ChatMessage], context: Context | None) -> list[int]:
        self.before_encode(messages)
        if not messages[-1].content:
            raise InvalidRequestError("the prompt is empty", "prompt")
        return [int(word) for message in messages for word in message.content.split()]

    def common_prefix(self, messages: Sequence[ChatMessage]) -> list[int]:
        return self.encode(messages, None)

    def check_token_ids(self, token_ids: Sequence[int], param: str) -> None:
        if any(not 0 <= token_id < VOCAB for token_id in token_ids):
            raise InvalidRequestError(f"{param} is out of range", param)

    def detokenizer(self) -> WordDetokenizer:
        return WordDetokenizer(self.model_key)


@dataclass
class Loader:
    """A model loader whose models are scripted.

    Attributes:
        calls: models asked for.
        closed: models closed.
        runners, codecs: of each model, the last that was loaded.
        gates: a model's loading waits for its gate.
        entered: set when a model with a gate is being loaded.
        deaf: models that finish loading without a look at whether they are still wanted.
        failures: what loading a model raises.
        before_step: called on the engine thread before every step of any model.
    """

    depth: int = 1
    before_step: Callable[[StepPlan], None] | None = None
    calls: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    runners: dict[str, ScriptedRunner] = field(default_factory=dict)
    codecs: dict[str, WordCodec] = field(default_factory=dict)
    gates: dict[str, threading.Event] = field(default_factory=dict)
    entered: threading.Event = field(default_factory=threading.Event)
    deaf: set[str] = field(default_factory=set)
    failures: dict[str, Exception] = field(default_factory=dict)
    knobs: dict[str, object] = field(default_factory=dict)

    def __call__(self, request: LoadRequest, progress: Progress) -> LoadedModel:
        name = request.model
        self.calls.append(name)
        progress("weights", 1, 2)
        if name in self.gates:
            self.entered.set()
            assert self.gates[name].wait(TIMEOUT)
        if name in self.failures:
            raise self.failures[name]
        if name not in self.deaf:
            progress("weights", 2, 2)
        config = EngineConfig(
            num_blocks=64,
            block_size=4,
            max_model_len=64,
            max_num_seqs=8,
            max_num_batched_tokens=64,
        )
        runner = ScriptedRunner(config, self.depth, on_step=self._step)
        self.runners[name] = runner
        codec = self.codecs.setdefault(name, WordCodec(name))

        def close() -> None:
            assert not runner._queue, "steps are in flight"
            self.closed.append(name)

        start = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "watermark": 0.0}
        return LoadedModel(
            key=name,
            card=ModelCard(name, "Scripted", 1000, "float32", "cpu", "none", 64, 4000, 64),
            config=config,
            shape=SHAPE,
            runner=runner,
            codec=codec,  # type: ignore[arg-type]
            sampling=SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True),
            knobs=Knobs(**(start | self.knobs)),  # type: ignore[arg-type]
            eos_token_ids=frozenset({EOS}),
            close=close,
        )

    def _step(self, plan: StepPlan) -> None:
        if self.before_step is not None:
            self.before_step(plan)

    def gate(self, name: str) -> threading.Event:
        self.entered.clear()
        return self.gates.setdefault(name, threading.Event())


class Turnstile:
    """Lets steps through one at a time.

    Attributes:
        reached: released each time the engine thread stands before a step.
    """

    def __init__(self) -> None:
        self.reached = threading.Semaphore(0)
        self._passes = threading.Semaphore(0)
        self._open = False

    def __call__(self, plan: StepPlan) -> None:
        self.reached.release()
        if not self._open:
            assert self._passes.acquire(timeout=TIMEOUT)

    def wait(self) -> None:
        assert self.reached.acquire(timeout=TIMEOUT)

    def let_one(self) -> None:
        self._passes.release()

    def open(self) -> None:
        self._open = True
        self._passes.release()


def read(stream: RequestStream) -> tuple[str, Finish]:
    """The whole reply. A stream that does not end fails the test."""
    text = ""
    deadline = time.monotonic() + TIMEOUT
    while stream.wait(max(0.0, deadline - time.monotonic())):
        delta = stream.drain()
        assert delta is not None
        text += delta.text
        if delta.finish is not None:
            assert stream.drain() is None, "news after the end"
            return text, delta.finish
    raise AssertionError(f"{stream.request_id} did not end")


def error_of(stream: RequestStream) -> ErrorInfo:
    finish = read(stream)[1]
    assert finish.reason is FinishReason.ERROR
    assert finish.error is not None
    return finish.error


def say(model: str, prompt: list[int], count: int) -> str:
    return "".join(f"{model}{token} " for token in reference(prompt, count))


def ask(
    host: EngineHost,
    prompt: str = "1 2 3",
    name: str | None = None,
    wake: Callable[[], None] | None = None,
    **options: object,
) -> RequestStream:
    """Submit a chat of one message; sampling parameters by name."""
    routed = {k: options.pop(k) for k in ("priority", "deadline") if k in options}
    fields: dict[str, object] = {"messages": (ChatMessage("user", prompt),), "sampling": options}
    if name is not None:
        fields["request_id"] = name
    return host.submit(Submission(**(fields | routed)), wake)  # type: ignore[arg-type]


def snapshot_when(host: EngineHost, ready: Callable[[Snapshot], bool]) -> Snapshot:
    """The first snapshot that is so. One that does not come fails the test."""
    deadline = time.monotonic() + TIMEOUT
    while (snapshot := host.snapshot()) is None or not ready(snapshot):
        assert time.monotonic() < deadline
    return snapshot


@pytest.fixture
def loader() -> Loader:
    return Loader()


@pytest.fixture
def host(loader: Loader) -> Iterator[EngineHost]:
    engine = EngineHost(loader)
    yield engine
    for gate in loader.gates.values():
        gate.set()
    if isinstance(loader.before_step, Turnstile):
        loader.before_step.open()
    engine.shutdown()
    assert not engine._thread.is_alive()
    for runner in loader.runners.values():
        assert not runner.violations


@pytest.fixture
def turnstile(loader: Loader) -> Turnstile:
    loader.before_step = Turnstile()
    return loader.before_step


class TestServing:
    def test_before_a_model_is_wanted(self, host: EngineHost) -> None:
        assert host.status().phase is EnginePhase.EMPTY
        assert host.snapshot() is None
        assert host.step_records(0) == ()

    def test_a_reply_streams(self, host: EngineHost) -> None:
        host.load(LoadRequest("a"))
        stream = ask(host, "1 2 3", max_tokens=7)
        text, finish = read(stream)
        assert text == say("a", [1, 2, 3], 7)
        assert finish.reason is FinishReason.LENGTH
        assert (finish.usage.prompt_tokens, finish.usage.completion_tokens) == (3, 7)
        assert finish.context is not None
        assert finish.context.model_key == "a"
        assert finish.context.token_ids == (1, 2, 3, *reference([1, 2, 3], 7))
        assert finish.context.num_messages == 2
        assert finish.timings.ttft is not None
        assert host.status().phase is EnginePhase.READY
        assert host.status().model == "a"

    def test_the_model_s_defaults_hold_unless_overridden(self, host: EngineHost) -> None:
        host.load(LoadRequest("a"))
        assert read(ask(host))[1].usage.completion_tokens == 5
        assert read(ask(host, max_tokens=2))[1].usage.completion_tokens == 2

    def test_a_prompt_of_token_ids(self, host: EngineHost) -> None:
        host.load(LoadRequest("a"))
        stream = host.submit(Submission(prompt_token_ids=(7, 8)))
        assert read(stream)[0] == say("a", [7, 8], 5)
        assert (stream.num_prompt_tokens, stream.num_output_tokens) == (2, 5)

    def test_submitted_before_there_is_a_model(self, host: EngineHost, loader: Loader) -> None:
        early = ask(host, "1")
        gate = loader.gate("a")
        host.load(LoadRequest("a"))
        assert loader.entered.wait(TIMEOUT)
        loading = ask(host, "2")
        assert host.status().phase is EnginePhase.LOADING
        assert (host.status().loaded_bytes, host.status().total_bytes) == (1, 2)
        assert early.drain() is None
        gate.set()
        assert read(early)[0] == say("a", [1], 5)
        assert read(loading)[0] == say("a", [2], 5)

    def test_many_at_once(self, host: EngineHost) -> None:
        host.load(LoadRequest("a"))
        streams = [ask(host, f"{i} 5 6 7 8 9", max_tokens=3 + i % 20) for i in range(60)]
        for i, stream in enumerate(streams):
            assert read(stream)[0] == say("a", [i, 5, 6, 7, 8, 9], 3 + i % 20)

    def test_a_stop_string_ends_the_request(self, host: EngineHost, loader: Loader) -> None:
        host.load(LoadRequest("a"))
        tokens = reference([1, 2, 3], 30)
        stream = ask(host, "1 2 3", max_tokens=30, stop=[f"a{tokens[4]}"])
        text, finish = read(stream)
        assert text == say("a", [1, 2, 3], 4)
        assert finish.reason is FinishReason.STOP
        assert finish.usage.completion_tokens == 5
        assert finish.context is not None
        assert finish.context.token_ids == (1, 2, 3, *tokens[:5])
        assert read(ask(host, "4"))[1].reason is FinishReason.LENGTH

    def test_a_reader_is_woken_at_most_once_a_step(self, host: EngineHost, loader: Loader) -> None:
        wakes: list[str] = []
        host.load(LoadRequest("a"))

        class Owner:
            def wake(self) -> None:
                wakes.append(threading.current_thread().name)

        owner = Owner()
        streams = [ask(host, f"{i}", max_tokens=9, wake=owner.wake) for i in range(6)]
        for stream in streams:
            read(stream)
        assert 1 <= len(wakes) <= len(loader.runners["a"].plans)
        assert set(wakes) == {"engine-text"}

    def test_snapshot_and_records(self, host: EngineHost, loader: Loader) -> None:
        host.load(LoadRequest("a"))
        read(ask(host, max_tokens=6))
        loader.runners["a"].fail_steps = {7}
        assert error_of(ask(host)).type == "engine_error"
        read(ask(host, max_tokens=4))
        records = host.step_records(0)
        assert [record.step for record in records] == list(range(1, len(records) + 1))
        for since in range(len(records) + 2):
            assert host.step_records(since) == records[since:]
        snapshot = host.snapshot()
        assert snapshot is not None
        assert snapshot.model.name == "a"


class TestAborting:
    def test_one_that_waits_for_a_model(self, host: EngineHost) -> None:
        stream = ask(host, name="x")
        host.abort("x")
        text, finish = read(stream)
        assert (text, finish.reason) == ("", FinishReason.ABORT)
        host.load(LoadRequest("a"))
        assert read(ask(host, name="x"))[1].reason is FinishReason.LENGTH

    def test_one_that_runs(self, host: EngineHost, turnstile: Turnstile) -> None:
        host.load(LoadRequest("a"))
        stream = ask(host, "1 2", name="x", max_tokens=40)
        for _ in range(3):
            turnstile.wait()
            turnstile.let_one()
        turnstile.wait()
        host.abort("x")
        host.abort("x")
        error_of(ask(host, ""))  # refused by the text thread, which had read the aborts by then
        turnstile.open()
        text, finish = read(stream)
        assert finish.reason is FinishReason.ABORT
        assert text == say("a", [1, 2], finish.usage.completion_tokens)
        assert finish.usage.completion_tokens == 4

    def test_unknown_and_ended_ones(self, host: EngineHost) -> None:
        host.abort("nobody")
        host.load(LoadRequest("a"))
        read(ask(host, name="x"))
        host.abort("x")
        host.abort("nobody")
        assert read(ask(host))[1].reason is FinishReason.LENGTH


class TestPriorities:
    @pytest.mark.parametrize("value", [1_000_001, -1_000_001, True, 1.0, "3", None])
    def test_one_out_of_bounds_is_the_caller_s_error(self, host: EngineHost, value: object) -> None:
        with pytest.raises(InvalidRequestError) as caught:
            host.set_priority("nobody", value)  # type: ignore[arg-type]
        assert caught.value.param == "priority"
        assert caught.value.message == (
            f"priority is {value!r}; it must be an integer from -1000000 to 1000000"
        )

    def test_one_that_waits_for_a_model(self, host: EngineHost, loader: Loader) -> None:
        loader.knobs = {"paused": True}
        streams = [ask(host, str(i), name=name) for i, name in enumerate("abc")]
        host.set_priority("c", 1_000_000)
        host.set_priority("a", -1_000_000)
        host.load(LoadRequest("m"))
        waiting(host, ("c", 1_000_000), ("b", 0), ("a", -1_000_000))
        host.set_knobs({"paused": False}, "me")
        assert all(read(stream)[1].reason is FinishReason.LENGTH for stream in streams)

    def test_it_does_not_overtake_its_submission(self, host: EngineHost, loader: Loader) -> None:
        """The text thread still encodes the request when its priority changes."""
        encodes, may_go_on = threading.Event(), threading.Event()

        def before_encode(messages: Sequence[ChatMessage]) -> None:
            if messages[-1].content == "2":
                encodes.set()
                assert may_go_on.wait(TIMEOUT)

        loader.knobs = {"paused": True}
        loader.codecs["m"] = WordCodec("m", before_encode)
        host.load(LoadRequest("m"))
        ask(host, "1", name="first")
        ask(host, "2", name="second")
        assert encodes.wait(TIMEOUT)
        host.set_priority("second", 2)
        may_go_on.set()
        waiting(host, ("second", 2), ("first", 0))

    def test_a_paused_engine_shows_it(self, host: EngineHost, loader: Loader) -> None:
        loader.knobs = {"paused": True}
        host.load(LoadRequest("m"))
        for name in "ab":
            ask(host, "1", name=name)
        waiting(host, ("a", 0), ("b", 0))
        host.set_priority("b", 1)
        snapshot = waiting(host, ("b", 1), ("a", 0))
        assert [view.wait_reason for view in snapshot.requests] == ["paused", "behind 1: paused"]

    def test_unknown_and_ended_ones(self, host: EngineHost) -> None:
        host.set_priority("nobody", 1)
        host.load(LoadRequest("a"))
        read(ask(host, name="x"))
        host.set_priority("x", 1)
        host.set_priority("nobody", 1)
        assert read(ask(host))[1].reason is FinishReason.LENGTH


def waiting(host: EngineHost, *expected: tuple[str, int]) -> Snapshot:
    """The first snapshot in which those wait, in this order, with these priorities."""

    def names(found: Snapshot) -> tuple[tuple[str, int], ...]:
        return tuple((view.request_id, view.priority) for view in found.requests)

    return snapshot_when(host, lambda found: names(found) == expected)


class TestRefusals:
    """They come through the stream, never as an exception, and hurt nobody else."""

    @pytest.mark.parametrize(
        ("prompt", "options", "kind", "param"),
        [
            ("", {}, "invalid_request_error", "prompt"),
            ("1 two", {}, "invalid_request_error", "prompt"),
            (" ".join(["1"] * 64), {}, "invalid_request_error", "prompt"),
            ("1", {"max_tokens": 64}, "invalid_request_error", "max_tokens"),
            ("1", {"temperature": -1}, "invalid_request_error", "temperature"),
            ("1", {"heat": 1}, "invalid_request_error", "heat"),
            ("1", {"stop_token_ids": [VOCAB]}, "invalid_request_error", "stop_token_ids"),
            ("1", {"priority": "high"}, "invalid_request_error", "priority"),
            ("1", {"deadline": float("inf")}, "invalid_request_error", "deadline"),
            ("1", {"deadline": float("nan")}, "invalid_request_error", "deadline"),
        ],
    )
    def test_bad_requests(
        self, host: EngineHost, prompt: str, options: dict[str, object], kind: str, param: str
    ) -> None:
        host.load(LoadRequest("a"))
        good = ask(host, "5 6", max_tokens=30)
        error = error_of(ask(host, prompt, **options))
        assert (error.type, error.param) == (kind, param)
        assert read(good)[0] == say("a", [5, 6], 30)
        assert host.status().phase is EnginePhase.READY

    def test_token_ids_out_of_range(self, host: EngineHost) -> None:
        host.load(LoadRequest("a"))
        stream = host.submit(Submission(prompt_token_ids=(1, VOCAB)))
        assert error_of(stream).param == "prompt_token_ids"

    def test_a_full_queue(self, host: EngineHost, loader: Loader, turnstile: Turnstile) -> None:
        loader.knobs = {"queue_limit": 2}
        host.load(LoadRequest("a"))
        first = ask(host, "9")
        turnstile.wait()
        streams = [ask(host, f"{i}") for i in range(3)]
        error_of(ask(host, ""))  # The text thread refuses it, and has passed on those before it.
        turnstile.open()
        assert error_of(streams[2]).type == "overloaded_error"
        for stream in (first, *streams[:2]):
            assert read(stream)[1].reason is FinishReason.LENGTH

    def test_an_id_that_waits_or_runs(self, host: EngineHost, turnstile: Turnstile) -> None:
        waits = ask(host, "1", name="x")
        assert error_of(ask(host, "2", name="x")).param == "request_id"
        host.load(LoadRequest("a"))
        turnstile.wait()
        error = error_of(ask(host, "3", name="x"))
        assert error.message == "request_id is 'x'; a request with this id has not ended yet"
        turnstile.open()
        assert read(waits)[0] == say("a", [1], 5)
        assert read(ask(host, "4", name="x"))[0] == say("a", [4], 5)

    def test_an_id_that_runs_on_the_model_before(
        self, host: EngineHost, turnstile: Turnstile
    ) -> None:
        host.load(LoadRequest("a"))
        runs = ask(host, "1", name="x")
        turnstile.wait()
        host.load(LoadRequest("b"))
        assert error_of(ask(host, "2", name="x")).param == "request_id"
        turnstile.open()
        assert read(runs)[0] == say("a", [1], 5)

    def test_a_reader_whose_wake_fails(self, host: EngineHost) -> None:
        def broken() -> None:
            raise RuntimeError("the loop is closed")

        waits = [ask(host, str(i), name=f"w{i}", wake=broken) for i in range(3)]
        host.abort("w0")
        assert read(waits[0])[1].reason is FinishReason.ABORT
        host.load(LoadRequest("a"))
        streams = [ask(host, "", wake=broken), ask(host, "1", wake=broken), ask(host, "2")]
        assert read(streams[0])[1].reason is FinishReason.ERROR
        for stream in (*waits[1:], *streams[1:]):
            assert read(stream)[1].reason is FinishReason.LENGTH
        host.shutdown()
        late = ask(host, "1", wake=broken)
        assert error_of(late).type == "unavailable_error"


class TestLoading:
    def test_a_failure_without_a_model_before(self, host: EngineHost, loader: Loader) -> None:
        loader.failures["bad"] = ModelError("it needs 9 GiB; 4 GiB are free", "model")
        waits = ask(host)
        host.load(LoadRequest("bad"))
        message = "could not load bad: it needs 9 GiB; 4 GiB are free"
        error = error_of(waits)
        assert (error.type, error.message) == ("unavailable_error", message)
        status = host.status()
        assert (status.phase, status.model, status.detail) == (EnginePhase.FAILED, "bad", message)
        assert error_of(ask(host)).message == message
        assert host.snapshot() is None

    def test_after_a_failure_another_may_be_loaded(self, host: EngineHost, loader: Loader) -> None:
        loader.failures["bad"] = ModelError("broken")
        host.load(LoadRequest("bad"))
        error_of(ask(host))
        host.load(LoadRequest("a"))
        assert read(ask(host, "1"))[0] == say("a", [1], 5)
        assert read(ask(host, "2"))[0] == say("a", [2], 5)
        assert host.status().detail == ""

    def test_an_exception_that_is_not_ours(self, host: EngineHost, loader: Loader) -> None:
        loader.failures["bad"] = KeyError("weights")
        host.load(LoadRequest("bad"))
        assert error_of(ask(host)).message == "could not load bad: KeyError: 'weights'"
        host.load(LoadRequest("a"))
        assert read(ask(host, "1"))[0] == say("a", [1], 5)

    def test_a_failure_goes_back_to_the_model_before(
        self, host: EngineHost, loader: Loader
    ) -> None:
        host.load(LoadRequest("a"))
        read(ask(host))
        gate = loader.gate("bad")
        loader.failures["bad"] = ModelError("broken")
        host.load(LoadRequest("bad"))
        held = ask(host, "3")
        assert loader.entered.wait(TIMEOUT)
        assert loader.closed == ["a"]
        gate.set()
        assert read(held)[0] == say("a", [3], 5)
        status = host.status()
        assert (status.phase, status.model) == (EnginePhase.READY, "a")
        assert status.detail == "could not load bad: broken; a is back"
        assert loader.calls == ["a", "bad", "a"]

    def test_nor_can_it_go_back(self, host: EngineHost, loader: Loader) -> None:
        host.load(LoadRequest("a"))
        read(ask(host))
        loader.failures = {"a": ModelError("gone"), "bad": ModelError("broken")}
        host.load(LoadRequest("bad"))
        error = error_of(ask(host))
        assert error.message == "could not load bad: broken; nor go back to a: gone"
        loader.failures = {}
        host.load(LoadRequest("b"))
        assert read(ask(host, "1"))[0] == say("b", [1], 5)

    def test_a_newer_wish_cancels_loading(self, host: EngineHost, loader: Loader) -> None:
        gate = loader.gate("slow")
        waits = ask(host, "1")
        host.load(LoadRequest("slow"))
        assert loader.entered.wait(TIMEOUT)
        host.load(LoadRequest("b"))
        gate.set()
        assert read(waits)[0] == say("b", [1], 5)
        assert loader.calls == ["slow", "b"]
        assert "slow" not in loader.runners

    def test_a_model_that_is_no_longer_wanted_gets_no_requests(
        self, host: EngineHost, loader: Loader
    ) -> None:
        """Loading ended just when another was asked for."""
        gate = loader.gate("late")
        loader.deaf.add("late")
        host.load(LoadRequest("late"))
        assert loader.entered.wait(TIMEOUT)
        host.load(LoadRequest("b"))
        held = ask(host, "1")
        gate.set()
        assert read(held)[0] == say("b", [1], 5)
        assert loader.closed == ["late"]

    def test_a_failure_of_what_is_no_longer_wanted_refuses_nobody(
        self, host: EngineHost, loader: Loader
    ) -> None:
        gate = loader.gate("bad")
        loader.failures["bad"] = ModelError("broken")
        host.load(LoadRequest("bad"))
        assert loader.entered.wait(TIMEOUT)
        host.load(LoadRequest("b"))
        held = ask(host, "1")
        gate.set()
        assert read(held)[0] == say("b", [1], 5)
        assert read(ask(host, "2"))[0] == say("b", [2], 5)

    def test_the_last_of_many_wishes_is_served(self, host: EngineHost, loader: Loader) -> None:
        for i in range(50):
            host.load(LoadRequest(f"m{i}"))
        last = ask(host, "1")
        assert read(last)[0] == say("m49", [1], 5)
        assert host.status().model == "m49"

    def test_the_same_wish_twice(self, host: EngineHost, loader: Loader) -> None:
        request = LoadRequest("a")
        streams = []
        for i in range(20):
            host.load(request)
            streams.append(ask(host, f"{i}"))
        for i, stream in enumerate(streams):
            assert read(stream)[0] == say("a", [i], 5)

    def test_ready_means_that_knobs_can_be_turned(self, loader: Loader) -> None:
        for _ in range(20):
            host = EngineHost(loader)
            host.load(LoadRequest("a"))
            deadline = time.monotonic() + TIMEOUT
            while host.status().phase is not EnginePhase.READY:
                assert time.monotonic() < deadline
            host.set_knobs({"prefill_chunk": 3}, "me")
            assert host.snapshot() is not None
            host.shutdown()


class TestSwitching:
    def test_what_runs_ends_and_what_comes_waits_for_the_new_model(
        self,
        host: EngineHost,
        loader: Loader,
        turnstile: Turnstile,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        caplog.set_level("INFO", "engine.host")
        loader.knobs = {"max_num_seqs": 1}
        host.load(LoadRequest("a"))
        runs, queued = ask(host, "1", max_tokens=20), ask(host, "2", max_tokens=20)
        turnstile.wait()
        host.load(LoadRequest("b"))
        held = ask(host, "3")
        turnstile.let_one()
        turnstile.wait()
        assert host.status().phase in (EnginePhase.READY, EnginePhase.DRAINING)
        turnstile.open()
        assert read(runs)[0] == say("a", [1], 20)
        assert read(queued)[0] == say("a", [2], 20)
        assert read(held)[0] == say("b", [3], 5)
        assert caplog.messages == ["2 requests end before b is loaded"]
        assert loader.closed == ["a"]
        assert host.status().model == "b"

    def test_one_that_was_being_encoded_goes_to_the_old_model(
        self, host: EngineHost, loader: Loader
    ) -> None:
        """The engine is idle, but a prompt is on its way: its ids are of the old vocabulary."""
        host.load(LoadRequest("a"))
        read(ask(host))
        entered, gate = threading.Event(), threading.Event()

        def slow(messages: Sequence[ChatMessage]) -> None:
            entered.set()
            assert gate.wait(TIMEOUT)

        loader.codecs["a"].before_encode = slow
        old = ask(host, "7")
        assert entered.wait(TIMEOUT)
        host.load(LoadRequest("b"))
        new = ask(host, "8")
        assert not new.wait(0.05)  # the engine has time to switch too early
        assert loader.calls == ["a"]
        gate.set()
        assert read(old)[0] == say("a", [7], 5)
        assert read(new)[0] == say("b", [8], 5)

    @pytest.mark.parametrize("knob", ["paused", "draining"])
    def test_a_halted_engine_is_switched_too(self, host: EngineHost, knob: str) -> None:
        host.load(LoadRequest("a"))
        read(ask(host))
        host.set_knobs({knob: True}, "me")
        waits = ask(host, "1")
        host.load(LoadRequest("b"))
        assert read(waits)[0] == say("a", [1], 5)
        assert read(ask(host, "2"))[0] == say("b", [2], 5)

    def test_back_and_forth_under_traffic(self, host: EngineHost, loader: Loader) -> None:
        streams = []
        for i in range(40):
            if i % 4 == 0:
                host.load(LoadRequest("ab"[i // 4 % 2]))
            streams.append(ask(host, f"{i} 1", max_tokens=1 + i % 7))
        for i, stream in enumerate(streams):
            text, finish = read(stream)
            assert finish.reason is FinishReason.LENGTH
            assert text in (say(name, [i, 1], 1 + i % 7) for name in "ab")
        assert read(ask(host, "5"))[0] == say("b", [5], 5)


class TestPins:
    SYSTEM = (ChatMessage("system", "100 101 102 103 104 105 106 107 108"),)  # two blocks and a bit

    def cached(self, host: EngineHost) -> list[int]:
        """Cached tokens of two chats that begin alike, with the pool filled between them."""
        found = []
        for user in ("1", "2"):
            chat = Submission(messages=(*self.SYSTEM, ChatMessage("user", user)))
            found.append(read(host.submit(chat))[1].usage.cached_tokens)
            for i in range(8):
                others = range(200 + 50 * i, 250 + 50 * i)
                read(ask(host, " ".join(map(str, others)), max_tokens=10))
        return found

    def test_without_one_a_prefix_is_evicted(self, host: EngineHost) -> None:
        host.load(LoadRequest("a"))
        assert self.cached(host) == [0, 0]

    @pytest.mark.parametrize("early", [True, False])
    def test_it_holds_before_and_after_a_model_is_there_and_for_the_next(
        self, host: EngineHost, early: bool
    ) -> None:
        if early:
            host.pin("system", self.SYSTEM)
        host.load(LoadRequest("a"))
        if not early:
            read(ask(host))
            host.pin("system", self.SYSTEM)
        for model in ("a", "b"):
            host.load(LoadRequest(model))
            assert self.cached(host) == [0, 8]
            snapshot = snapshot_when(host, lambda found: bool(found.pins))
            assert snapshot.pins == (PinView("system", tokens=9, blocks=2, computed=2),)

    def test_one_let_go_is_gone_for_the_next_model_too(self, host: EngineHost) -> None:
        host.pin("system", self.SYSTEM)
        host.load(LoadRequest("a"))
        snapshot_when(host, lambda found: bool(found.pins))
        host.unpin("system")
        snapshot_when(host, lambda found: not found.pins)
        host.load(LoadRequest("b"))
        assert self.cached(host) == [0, 0]
        assert snapshot_when(host, lambda found: True).pins == ()

    def test_one_let_go_without_a_model_never_holds(self, host: EngineHost) -> None:
        host.pin("system", self.SYSTEM)
        host.unpin("system")
        host.load(LoadRequest("a"))
        assert self.cached(host) == [0, 0]

    def test_one_that_does_not_fit_says_so(self, host: EngineHost) -> None:
        host.load(LoadRequest("a"))
        host.pin("long", (ChatMessage("system", "1 " * 200),))
        (pin,) = snapshot_when(host, lambda found: bool(found.pins)).pins
        assert (pin.name, pin.tokens, pin.blocks) == ("long", 200, 0)
        assert "50 blocks; 48 are what the pool has" in pin.error


def test_a_fork_shares_what_its_source_has(host: EngineHost, loader: Loader) -> None:
    """Ten tokens: two full blocks shared, the third copied, one token computed."""
    loader.knobs = {"prefix_caching": False, "paused": True}
    host.load(LoadRequest("a"))
    prompt = tuple(range(10))
    first = Submission(prompt_token_ids=prompt)
    fork = Submission(prompt_token_ids=prompt, fork_of=first.request_id)
    streams = [host.submit(first), host.submit(fork)]
    snapshot_when(host, lambda found: found.num_waiting == 2)
    host.set_knobs({"paused": False}, "me")
    finishes = [read(stream)[1] for stream in streams]
    assert [finish.usage.cached_tokens for finish in finishes] == [0, 9]
    assert [len(plan.copies) for plan in loader.runners["a"].plans[:3]] == [0, 1, 0]
    assert {finish.reason for finish in finishes} == {FinishReason.LENGTH}


class TestKnobs:
    def test_without_a_model(self, host: EngineHost) -> None:
        for turn in (lambda: host.set_knobs({}, "me"), lambda: host.undo_knobs("me")):
            with pytest.raises(UnavailableError, match="no model is loaded"):
                turn()

    def test_errors_are_the_caller_s_and_change_nothing(self, host: EngineHost) -> None:
        host.load(LoadRequest("a"))
        read(ask(host))
        with pytest.raises(InvalidConfigError) as caught:
            host.set_knobs({"paused": True, "max_num_seqs": 9}, "me")
        assert caught.value.message == "max_num_seqs is 9; it must be from 1 to 8"
        assert read(ask(host))[1].reason is FinishReason.LENGTH

    def test_they_take_effect_without_traffic_and_can_be_undone(self, host: EngineHost) -> None:
        host.load(LoadRequest("a"))
        read(ask(host))
        host.set_knobs({"paused": True}, "me")
        waits = ask(host, "1")
        host.undo_knobs("you")
        assert read(waits)[0] == say("a", [1], 5)


class TestShutdown:
    @pytest.mark.parametrize("depth", [1, 2, 4])
    def test_every_stream_ends(self, loader: Loader, depth: int) -> None:
        loader.depth, loader.knobs = depth, {"max_num_seqs": 2}
        loader.before_step = turnstile = Turnstile()
        host = EngineHost(loader)
        host.load(LoadRequest("a"))
        streams = [ask(host, str(i), max_tokens=60) for i in range(4)]
        turnstile.wait()
        host.load(LoadRequest("b"))
        held = ask(host, "9")
        stopper = threading.Thread(target=host.shutdown)
        stopper.start()
        turnstile.open()
        reasons = {read(stream)[1].reason for stream in streams}
        assert reasons <= {FinishReason.ABORT, FinishReason.ERROR}
        assert error_of(held).message == "the engine was shut down"
        stopper.join(TIMEOUT)
        assert not stopper.is_alive()
        assert host.status().phase is EnginePhase.STOPPED
        assert loader.closed == ["a"]
        assert error_of(ask(host)).type == "unavailable_error"
        host.shutdown()

    def test_what_runs_is_aborted_with_what_it_had(self, loader: Loader) -> None:
        loader.before_step = turnstile = Turnstile()
        host = EngineHost(loader)
        host.load(LoadRequest("a"))
        stream = ask(host, "1", max_tokens=60)
        for _ in range(3):
            turnstile.wait()
            turnstile.let_one()
        turnstile.wait()
        host._stopping = True  # as `shutdown` does first, which then blocks
        turnstile.open()
        host.shutdown()
        text, finish = read(stream)
        assert finish.reason is FinishReason.ABORT
        assert finish.usage.completion_tokens == 4
        assert text == say("a", [1], 4)

    def test_without_a_model(self, loader: Loader) -> None:
        host = EngineHost(loader)
        waits = ask(host)
        host.shutdown()
        assert error_of(waits).message == "the engine was shut down"
        assert host.status().phase is EnginePhase.STOPPED
        host.abort("x")
        host.load(LoadRequest("a"))
        assert loader.calls == []

    def test_while_a_model_loads(self, loader: Loader) -> None:
        gate = loader.gate("a")
        host = EngineHost(loader)
        host.load(LoadRequest("a"))
        assert loader.entered.wait(TIMEOUT)
        waits = ask(host)
        host._stopping = True
        gate.set()
        host.shutdown()
        assert error_of(waits).type == "unavailable_error"
        assert host.status().phase is EnginePhase.STOPPED
        assert loader.runners == {}


class TestCrash:
    """A bug in the engine thread: everybody is told, nobody waits for ever."""

    def test_every_stream_ends(self, loader: Loader) -> None:
        class Bug(BaseException):
            pass

        def crash(plan: StepPlan) -> None:
            if plan.step == 3:
                raise Bug("boom")

        loader.before_step = crash
        host = EngineHost(loader)
        host.load(LoadRequest("a"))
        streams = [ask(host, str(i), max_tokens=20) for i in range(4)]
        message = "the engine failed: Bug: boom"
        for stream in streams:
            assert error_of(stream).message == message
        assert error_of(ask(host)).message == message
        status = host.status()
        assert (status.phase, status.detail) == (EnginePhase.FAILED, message)
        assert loader.closed == ["a"]
        assert host.snapshot() is None
        with pytest.raises(EngineError):
            host.set_knobs({"paused": True}, "me")
        host.abort("x")
        host.load(LoadRequest("b"))
        host.shutdown()
        assert host.status().phase is EnginePhase.FAILED

    def test_a_failing_step_is_not_a_crash(self, host: EngineHost, loader: Loader) -> None:
        host.load(LoadRequest("a"))
        read(ask(host, max_tokens=1))
        loader.runners["a"].fail_submits = {2}
        assert "scripted failure" in error_of(ask(host)).message
        assert read(ask(host, "1"))[0] == say("a", [1], 5)


class CountingClock:
    def __init__(self) -> None:
        self.reads = 0

    def __call__(self) -> float:
        self.reads += 1
        return time.monotonic()


class TestIdle:
    def test_an_idle_engine_does_nothing(self, loader: Loader) -> None:
        clock = CountingClock()
        host = EngineHost(loader, clock)
        host.load(LoadRequest("a"))
        read(ask(host))
        host.set_knobs({"paused": True}, "me")
        waits = ask(host, "1")
        assert not waits.wait(0.05)  # time for what was asked to settle
        reads, plans = clock.reads, len(loader.runners["a"].plans)
        assert not waits.wait(0.1)
        assert host.snapshot() is not None
        assert (clock.reads, len(loader.runners["a"].plans)) == (reads, plans)
        host.undo_knobs("me")
        assert read(waits)[0] == say("a", [1], 5)
        host.shutdown()

    def test_it_wakes_for_a_deadline(self, host: EngineHost) -> None:
        host.load(LoadRequest("a"))
        read(ask(host))
        host.set_knobs({"paused": True}, "me")
        late, patient = ask(host, "1", deadline=0.02), ask(host, "2", deadline=3e7)
        error = error_of(late)
        assert (error.type, error.param) == ("deadline_error", "deadline")
        host.undo_knobs("me")
        assert read(patient)[0] == say("a", [2], 5)


def test_deltas_add_up(host: EngineHost) -> None:
    """Counts in deltas are those of the usage."""
    host.load(LoadRequest("a"))
    deltas: list[Delta] = list(ask(host, max_tokens=9))
    assert sum(delta.num_tokens for delta in deltas) == 9
    assert [delta.finish is not None for delta in deltas][:-1] == [False] * (len(deltas) - 1)
