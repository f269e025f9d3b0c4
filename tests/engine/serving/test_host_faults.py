"""The host with a model's own code, or a thread, at fault: the guilty request ends, or all do."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pytest

from engine.api.client import ChatMessage, LoadRequest, Submission
from engine.api.errors import DeviceLostError, InvalidRequestError
from engine.api.lifecycle import FinishReason
from engine.api.origin import Origin
from engine.api.status import EnginePhase
from engine.api.stream import RequestStream
from engine.serving import host as host_module
from engine.serving.host import EngineHost
from engine.serving.loading import LoadedModel, Progress
from engine.serving.watch import GAP_SECONDS, STEP_SECONDS, step_limit
from tests.support.asking import ask, error_of, read, say
from tests.support.clock import VirtualClock
from tests.support.harness import SHAPE
from tests.support.scripted_loader import TIMEOUT, Loader, Turnstile, WordCodec, WordDetokenizer
from tests.support.unruly_tokenizer import Panic


@dataclass
class Gated(WordCodec):
    """Prompts that begin with 9 wait at their gate.

    Attributes:
        entered: released for each prompt that is begun.
        begun: their first words.
        limit: most characters of a prompt.
    """

    entered: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    gate: threading.Event = field(default_factory=threading.Event)
    begun: list[str] = field(default_factory=list)
    limit: int = 1000

    def __post_init__(self) -> None:
        self.before_encode = self._wait

    def check_size(self, size: int, max_model_len: int) -> None:
        if size > self.limit:
            raise InvalidRequestError("too large", "prompt")

    def _wait(self, messages: Sequence[ChatMessage]) -> None:
        word = messages[-1].content.split()[0]
        self.begun.append(word)
        self.entered.release()
        if word == "9":
            assert self.gate.wait(TIMEOUT)

    def wait(self) -> None:
        assert self.entered.acquire(timeout=TIMEOUT)


@pytest.fixture
def host(host: EngineHost, loader: Loader) -> Iterator[EngineHost]:
    """Prompts that wait at a gate go on before the host is shut down."""
    yield host
    for codec in loader.codecs.values():
        if isinstance(codec, Gated):
            codec.gate.set()


@pytest.fixture
def gated(loader: Loader, host: EngineHost) -> Gated:
    codec = loader.codecs["a"] = Gated("a")
    host.load(LoadRequest("a"))
    return codec


def ask_as(host: EngineHost, user: str, prompt: str, name: str | None = None) -> RequestStream:
    named = {} if name is None else {"request_id": name}
    messages = (ChatMessage("user", prompt),)
    return host.submit(Submission(messages=messages, origin=Origin(user=user), **named))  # type: ignore[arg-type]


def eventually(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.001)


class TestPrompts:
    @pytest.mark.parametrize("error", [Panic("regex"), MemoryError(), RecursionError("deep")])
    def test_whatever_encoding_raises_ends_the_prompt(
        self, host: EngineHost, loader: Loader, error: BaseException
    ) -> None:
        def fail(messages: Sequence[ChatMessage]) -> None:
            if messages[-1].content == "9":
                raise error

        loader.codecs["a"] = WordCodec("a", fail)
        host.load(LoadRequest("a"))
        refusal = error_of(ask(host, "9"))
        assert refusal.type == "invalid_request_error"
        assert refusal.message.startswith("the prompt could not be read: ")
        assert type(error).__name__ in refusal.message
        assert read(ask(host, "1"))[0] == say("a", [1], 5)

    def test_one_that_does_not_return_keeps_nobody_else(
        self, host: EngineHost, gated: Gated
    ) -> None:
        runs = ask_as(host, "anna", "1")
        stuck = ask_as(host, "bob", "9")
        behind = ask_as(host, "bob", "2")
        gated.wait()
        assert read(runs)[0] == say("a", [1], 5)
        assert read(ask_as(host, "anna", "3"))[0] == say("a", [3], 5)
        assert behind.drain() is None
        gated.gate.set()
        assert read(stuck)[0] == say("a", [9], 5)
        assert read(behind)[0] == say("a", [2], 5)

    def test_one_that_is_too_large_is_not_encoded(self, host: EngineHost, gated: Gated) -> None:
        refusal = error_of(ask(host, "5 " * 600))
        assert (refusal.message, refusal.param) == ("too large", "prompt")
        assert gated.begun == []

    def test_an_abort_reaches_one_that_waits_for_its_turn(
        self, host: EngineHost, gated: Gated
    ) -> None:
        stuck = ask_as(host, "bob", "9", "stuck")
        behind = ask_as(host, "bob", "2", "behind")
        gated.wait()
        host.abort("behind")
        host.abort("stuck")
        for stream in (behind, stuck):
            assert read(stream)[1].reason is FinishReason.ABORT
        again = ask_as(host, "bob", "4", "stuck")
        gated.gate.set()
        assert read(again)[0] == say("a", [4], 5)
        assert stuck.drain() is None
        assert gated.begun == ["9", "4"]

    def test_a_shutdown_ends_those_that_wait(self, host: EngineHost, gated: Gated) -> None:
        streams = [ask_as(host, "bob", "9"), ask_as(host, "bob", "2")]
        gated.wait()
        host.shutdown()
        for stream in streams:
            assert error_of(stream).message == "the engine was shut down"

    def test_a_pin_of_a_model_that_is_gone_is_dropped(self, host: EngineHost, gated: Gated) -> None:
        host.pin("slow", (ChatMessage("system", "9 1"),))
        gated.wait()
        host.load(LoadRequest("b"))
        assert read(ask(host, "5"))[0] == say("b", [5], 5)
        gated.gate.set()
        snapshot = host.snapshot()
        eventually(lambda: (found := host.snapshot()) is not None and found is not snapshot)


class TestReplies:
    def test_a_panic_of_the_decoder_ends_the_reply(
        self, host: EngineHost, loader: Loader, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(WordDetokenizer, "push", panicking(WordDetokenizer.push))
        host.load(LoadRequest("a"))
        error = error_of(ask(host, "1"))
        assert error.message == "the reply could not be made text: Panic: no such token"
        assert host.status().phase is EnginePhase.READY
        monkeypatch.undo()
        assert read(ask(host, "1"))[0] == say("a", [1], 5)


def panicking(push: Callable[..., str]) -> Callable[..., str]:
    def panic(self: WordDetokenizer, token_id: int) -> str:
        raise Panic("no such token")

    return panic


class TestThreads:
    def test_an_end_of_the_text_thread_is_told_to_all(
        self, host: EngineHost, loader: Loader, gated: Gated, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stuck = ask_as(host, "bob", "9")
        gated.wait()

        def fail(*_: object) -> None:
            raise Panic("a bug")

        monkeypatch.setattr(host._text._prefixes, "pin", fail)
        host.pin("name", ())
        message = "the text thread failed: Panic: a bug"
        assert error_of(stuck).message == message
        eventually(lambda: host.status().has_crashed)
        status = host.status()
        assert (status.phase, status.detail) == (EnginePhase.FAILED, message)
        assert error_of(ask(host, "1")).message == message
        host._thread.join(TIMEOUT)
        assert not host._thread.is_alive()
        assert loader.closed == ["a"]
        assert host.status() == status

    def test_a_text_thread_that_hangs_is_told(
        self, host: EngineHost, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(host_module, "TEXT_SECONDS", 0.01)
        host.load(LoadRequest("a"))
        read(ask(host))
        assert host.status().phase is EnginePhase.READY
        gate = threading.Event()

        def hang() -> None:
            assert gate.wait(TIMEOUT)

        host._text._post(hang)
        eventually(lambda: host.status().has_crashed)
        status = host.status()
        assert (status.phase, status.model) == (EnginePhase.FAILED, "a")
        assert status.detail == "the text thread has been in one call for more than 0.01 s"
        gate.set()


class TestSteps:
    """By a clock of their own, with somebody who looks at the host every second."""

    @pytest.fixture
    def clock(self) -> VirtualClock:
        return VirtualClock()

    @pytest.fixture
    def host(
        self,
        loader: Loader,
        clock: VirtualClock,
        turnstile: Turnstile,
        monkeypatch: pytest.MonkeyPatch,
    ) -> Iterator[EngineHost]:
        # The text thread may be at work while the time of the test goes by.
        monkeypatch.setattr(host_module, "TEXT_SECONDS", math.inf)
        engine = EngineHost(loader, clock)
        yield engine
        turnstile.open()
        engine.shutdown()

    def stuck(self, host: EngineHost, turnstile: Turnstile) -> RequestStream:
        """A request whose first step has begun and does not end."""
        host.load(LoadRequest("a"))
        stream = ask(host, "1")
        turnstile.wait()
        return stream

    def look(self, host: EngineHost, clock: VirtualClock, seconds: int) -> bool:
        for _ in range(seconds):
            clock.advance(1.0)
            host.status()
        return host.status().has_crashed

    def test_one_that_does_not_end_is_told(
        self, host: EngineHost, clock: VirtualClock, turnstile: Turnstile
    ) -> None:
        self.stuck(host, turnstile)
        assert not self.look(host, clock, 300)
        assert self.look(host, clock, 1)
        status = host.status()
        assert (status.phase, status.model) == (EnginePhase.FAILED, "a")
        assert status.detail == "a step has been under way for more than 300 s"

    def test_many_that_end_are_fine(
        self, host: EngineHost, clock: VirtualClock, turnstile: Turnstile
    ) -> None:
        stream = self.stuck(host, turnstile)
        for _ in range(4):
            assert not self.look(host, clock, 200)
            turnstile.let_one()
            turnstile.wait()
        assert not self.look(host, clock, 200)
        turnstile.open()
        assert read(stream)[0] == say("a", [1], 5)

    def test_one_of_a_process_that_was_stopped_is_fine(
        self, host: EngineHost, clock: VirtualClock, turnstile: Turnstile
    ) -> None:
        self.stuck(host, turnstile)
        clock.advance(100_000.0)
        assert not self.look(host, clock, 301)  # the first look begins to count
        assert self.look(host, clock, 1)
        clock.advance(GAP_SECONDS)
        assert host.status().has_crashed

    def test_a_full_one_of_a_large_model_may_take_longer(self) -> None:
        assert step_limit(SHAPE, 2048) == STEP_SECONDS
        eight_billion = replace(SHAPE, num_params=8 * 10**9)
        assert step_limit(eight_billion, 2048) == pytest.approx(6554, abs=1)


class TestDevices:
    """A device that is lost ends the engine, and each request that it has is told why."""

    LOST = DeviceLostError("cuda:0 computes nothing any more: AcceleratorError: illegal access")
    TOLD = f"the engine failed: {LOST.message}"

    @pytest.mark.parametrize("depth", [1, 2])
    def test_all_are_told_those_of_the_step_and_those_that_wait(
        self, host: EngineHost, loader: Loader, turnstile: Turnstile, depth: int
    ) -> None:
        loader.depth = depth
        codec = loader.codecs["a"] = Gated("a")
        host.load(LoadRequest("a"))
        streams = [ask(host, str(number)) for number in range(1, 4)]
        turnstile.wait()
        runner = loader.runners["a"]
        runner.failure = self.LOST
        runner.fail_steps.add(1)
        streams += [ask(host, "4"), ask_as(host, "bob", "9")]
        codec.wait()
        turnstile.open()
        for stream in streams:
            error = error_of(stream)
            assert (error.type, error.message) == ("unavailable_error", self.TOLD)
        eventually(lambda: host.status().has_crashed)
        assert host.status().detail == self.TOLD
        assert error_of(ask(host, "5")).message == self.TOLD

    def test_they_are_told_before_the_model_is_closed(
        self,
        host: EngineHost,
        loader: Loader,
        turnstile: Turnstile,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        closing, closed = threading.Event(), threading.Event()

        def close() -> None:
            closing.set()
            assert closed.wait(TIMEOUT)
            raise RuntimeError("CUDA error: illegal access")

        def load(request: LoadRequest, progress: Progress) -> LoadedModel:
            return replace(loader(request, progress), close=close)

        monkeypatch.setattr(host, "_loader", load)
        host.load(LoadRequest("a"))
        stream = ask(host, "1")
        turnstile.wait()
        loader.runners["a"].failure = self.LOST
        loader.runners["a"].fail_steps.add(1)
        turnstile.open()
        assert error_of(stream).message == self.TOLD
        assert closing.wait(TIMEOUT)
        assert host.status().detail == self.TOLD
        closed.set()
        host._thread.join(TIMEOUT)
        assert host.status().detail == self.TOLD

    def test_one_that_is_lost_while_a_model_is_loaded_ends_the_engine(
        self, host: EngineHost, loader: Loader
    ) -> None:
        """The model before could not be had again."""
        loader.failures["b"] = self.LOST
        host.load(LoadRequest("a"))
        assert read(ask(host, "1"))[0] == say("a", [1], 5)
        host.load(LoadRequest("b"))
        assert error_of(ask(host, "2")).message == self.TOLD
        eventually(lambda: host.status().has_crashed)
        assert loader.calls == ["a", "b"]


class TestLoaders:
    def test_one_that_reports_nothing_is_told_and_not_ended(
        self, loader: Loader, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(host_module, "TEXT_SECONDS", math.inf)
        gate, clock = loader.gate("a"), VirtualClock()
        host = EngineHost(loader, clock)
        host.load(LoadRequest("a"))
        assert loader.entered.wait(TIMEOUT)
        for _ in range(59):
            clock.advance(1.0)
            assert host.status().detail == "weights"
        for _ in range(3600):
            clock.advance(1.0)
            status = host.status()
        assert (status.phase, status.has_crashed) == (EnginePhase.LOADING, False)
        assert status.detail == "weights, nothing new for 60 min"
        gate.set()
        assert read(ask(host, "1"))[0] == say("a", [1], 5)
        assert host.status().detail == ""
        host.shutdown()

    @pytest.mark.parametrize(
        ("error", "told"),
        [
            (Panic("a shape\noverflows"), "Panic: a shape overflows"),
            (MemoryError(), "MemoryError"),
            (RecursionError("too deep"), "RecursionError: too deep"),
            (TypeError("no"), "TypeError: no"),
        ],
    )
    def test_whatever_a_loader_raises_is_a_sentence(
        self, host: EngineHost, loader: Loader, error: BaseException, told: str
    ) -> None:
        loader.failures["bad"] = error  # type: ignore[assignment]
        host.load(LoadRequest("bad"))
        assert error_of(ask(host)).message == f"could not load bad: {told}"
        assert not host.status().has_crashed
        host.load(LoadRequest("a"))
        assert read(ask(host, "1"))[0] == say("a", [1], 5)
        assert host.status().detail == ""

    def test_an_exit_is_a_crash(self, loader: Loader) -> None:
        loader.failures["bad"] = SystemExit(1)  # type: ignore[assignment]
        host = EngineHost(loader)
        host.load(LoadRequest("bad"))
        assert error_of(ask(host)).message == "the engine failed: SystemExit: 1"
        assert host.status().has_crashed
        host.shutdown()

    def test_progress_told_late_does_not_undo_the_failure(self) -> None:
        """Another thread of the loader has not yet heard that it failed."""
        told: list[Progress] = []

        def load(request: LoadRequest, progress: Progress) -> LoadedModel:
            told.append(progress)
            raise OverflowError("a shape overflows")

        host = EngineHost(load)
        host.load(LoadRequest("bad"))
        error_of(ask(host))
        with pytest.raises(Exception):  # noqa: B017, PT011  # it is told to give up
            told[0]("weights", 1, 2)
        status = host.status()
        assert status.phase is EnginePhase.FAILED
        assert status.detail == "could not load bad: OverflowError: a shape overflows"
        host.shutdown()
