"""Tool calls: read when a reply has ended, while everything else goes on."""

from __future__ import annotations

import threading

from engine.api.client import LoadRequest
from engine.api.lifecycle import FinishReason
from engine.api.stream import RequestStream
from engine.api.tools import ToolCall, ToolUse
from engine.serving.host import EngineHost
from tests.support.asking import ask, error_of, read, say
from tests.support.scripted_loader import TIMEOUT, Loader, WordCodec
from tests.support.scripted_runner import reference
from tests.support.tool_calling import TOOLS

PROMPT = [1, 2, 3]
USE = ToolUse((ToolCall("f", "{}"),))


def codec(loader: Loader) -> WordCodec:
    """That of the model `a`, whose replies have tool calls."""
    found = loader.codecs["a"] = WordCodec("a")
    return found


def ended(host: EngineHost, **options: object) -> RequestStream:
    """A request whose reply ends by itself, at its fourth token."""
    stop = f"a{reference(PROMPT, 4)[-1]}"
    options = {"tools": list(TOOLS), **options}
    return ask(host, "1 2 3", max_tokens=30, stop=[stop], **options)


def test_they_come_with_the_end(host: EngineHost, loader: Loader) -> None:
    seen: list[object] = []

    def reading(*given: object, is_open: bool) -> ToolUse:
        assert not is_open
        seen.append((threading.current_thread().name[:-1], *given))
        return USE

    codec(loader).read_calls = reading
    host.load(LoadRequest("a"))
    text, finish = read(ended(host))
    assert (text, finish.tool_use) == (say("a", PROMPT, 3), USE)
    assert finish.context is not None
    assert seen == [("engine-encoding-", finish.context.token_ids, 3, TOOLS)]
    assert loader.codecs["a"].arguments == [{"tools": list(TOOLS)}]


def test_a_reply_that_was_cut_is_not_read(host: EngineHost, loader: Loader) -> None:
    codec(loader).read_calls = lambda *_, **__: USE
    host.load(LoadRequest("a"))
    finish = read(ask(host, max_tokens=3))[1]
    assert (finish.reason, finish.tool_use) == (FinishReason.LENGTH, None)


def test_a_reply_that_was_offered_no_tools_is_not_read(host: EngineHost, loader: Loader) -> None:
    codec(loader).read_calls = lambda *_, **__: USE
    host.load(LoadRequest("a"))
    assert read(ended(host, tools=[]))[1].tool_use is None


def test_a_reply_that_cannot_be_read_stays_text(host: EngineHost, loader: Loader) -> None:
    def failing(*_: object, is_open: bool) -> ToolUse:
        raise SystemError("a mistake of ours")

    codec(loader).read_calls = failing
    host.load(LoadRequest("a"))
    text, finish = read(ended(host))
    assert (text, finish.reason, finish.tool_use) == (say("a", PROMPT, 3), FinishReason.STOP, None)


def test_while_one_is_read_its_text_is_there_and_others_go_on(
    host: EngineHost, loader: Loader
) -> None:
    entered, gate = threading.Event(), threading.Event()

    def waiting(*_: object, is_open: bool) -> ToolUse:
        entered.set()
        assert gate.wait(TIMEOUT)
        return USE

    codec(loader).read_calls = waiting
    host.load(LoadRequest("a"))
    stream = ended(host, name="r")
    assert entered.wait(TIMEOUT)
    assert read(ask(host, "4"))[1].reason is FinishReason.LENGTH
    delta = stream.drain()
    assert delta is not None
    assert (delta.text, delta.finish) == (say("a", PROMPT, 3), None)
    assert "has not ended yet" in error_of(ask(host, name="r")).message
    gate.set()
    assert read(stream)[1].tool_use is USE


def test_another_model_or_the_end_of_the_host_leaves_it_text(
    host: EngineHost, loader: Loader
) -> None:
    gates = [threading.Event(), threading.Event()]
    waiting_at = iter(gates)
    entered = threading.Semaphore(0)

    def waiting(*_: object, is_open: bool) -> ToolUse:
        gate = next(waiting_at)
        entered.release()
        assert gate.wait(TIMEOUT)
        return USE

    codec(loader).read_calls = waiting
    host.load(LoadRequest("a"))
    before = ended(host)
    assert entered.acquire(timeout=TIMEOUT)
    host.load(LoadRequest("b"))
    assert read(before)[1].tool_use is None
    gates[0].set()
    host.load(LoadRequest("a"))
    last = ended(host)
    assert entered.acquire(timeout=TIMEOUT)
    host.shutdown()
    finish = read(last)[1]
    assert (finish.reason, finish.tool_use) == (FinishReason.STOP, None)
    gates[1].set()
