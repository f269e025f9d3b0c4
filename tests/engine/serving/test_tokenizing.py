"""Tokenizing: token ids of what is not asked, and text of token ids."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from engine.api.client import ChatMessage, LoadRequest
from engine.api.errors import EngineError, InvalidRequestError, UnavailableError
from engine.serving.host import EngineHost
from tests.support.asking import ask, read
from tests.support.scripted_loader import TIMEOUT, Loader

CHAT = (ChatMessage("user", "1 2"), ChatMessage("assistant", "3"), ChatMessage("user", "4"))


def served(host: EngineHost) -> None:
    host.load(LoadRequest("a"))
    read(ask(host))


def test_the_model_that_is_served_tokenizes(host: EngineHost, loader: Loader) -> None:
    for promise in (host.tokenize("1"), host.detokenize([1]), host.spell([1])):
        with pytest.raises(UnavailableError, match="no model is loaded"):
            promise.result(TIMEOUT)
    served(host)
    assert host.tokenize("1 2 3").result(TIMEOUT) == [1, 2, 3]
    sampling = {"chat_template_kwargs": {"enable_thinking": False}}
    assert host.tokenize(CHAT, sampling).result(TIMEOUT) == [1, 2, 3, 4]
    assert loader.codecs["a"].arguments[-1] == {"enable_thinking": False}
    assert host.detokenize([5, 6]).result(TIMEOUT) == "5 6"
    assert host.spell([5, 6]).result(TIMEOUT) == ["5", "6"]


def test_what_cannot_be_read_is_refused(host: EngineHost) -> None:
    served(host)
    with pytest.raises(InvalidRequestError, match="the tokenizer failed: ValueError"):
        host.tokenize("one").result(TIMEOUT)
    with pytest.raises(InvalidRequestError, match="temperature is -1"):
        host.tokenize(CHAT, {"temperature": -1}).result(TIMEOUT)
    with pytest.raises(InvalidRequestError, match="tokens is out of range"):
        host.detokenize([-1]).result(TIMEOUT)
    with pytest.raises(InvalidRequestError, match="tokens has 65 entries; at most 64 are allowed"):
        host.spell([1] * 65).result(TIMEOUT)


def test_a_text_may_be_longer_than_the_context(host: EngineHost) -> None:
    served(host)
    assert len(host.tokenize("1 " * 100).result(TIMEOUT)) == 100


def test_each_user_waits_for_a_turn_and_what_is_cancelled_takes_none(
    host: EngineHost, loader: Loader
) -> None:
    served(host)
    entered, gate, read_chats = threading.Event(), threading.Event(), []

    def slow(messages: Sequence[ChatMessage]) -> None:
        read_chats.append(messages)
        entered.set()
        assert gate.wait(TIMEOUT)

    loader.codecs["a"].before_encode = slow
    first = host.tokenize(CHAT, user="ann")
    assert entered.wait(TIMEOUT)
    given_up = host.tokenize(CHAT[:1], user="ann")
    last = host.tokenize("7", user="ann")
    assert host.tokenize("8", user="bob").result(TIMEOUT) == [8]
    assert given_up.cancel()
    assert not last.done()
    gate.set()
    assert last.result(TIMEOUT) == [7]
    assert first.result(TIMEOUT) == [1, 2, 3, 4]
    assert read_chats == [CHAT]


def test_the_end_of_the_engine_ends_what_waits(loader: Loader) -> None:
    host = EngineHost(loader)
    served(host)
    entered, gate = threading.Event(), threading.Event()

    def slow(messages: Sequence[ChatMessage]) -> None:
        entered.set()
        assert gate.wait(TIMEOUT)

    loader.codecs["a"].before_encode = slow
    promises = [host.tokenize(CHAT, user="ann") for _ in range(2)]
    assert entered.wait(TIMEOUT)
    host.shutdown()
    gate.set()
    for promise in (*promises, host.tokenize("1"), host.detokenize([1])):
        with pytest.raises(EngineError, match="the engine was shut down"):
            promise.result(TIMEOUT)


def test_while_another_model_is_loaded_nothing_is_read(host: EngineHost, loader: Loader) -> None:
    served(host)
    gate = loader.gate("b")
    host.load(LoadRequest("b"))
    with pytest.raises(UnavailableError, match="another model is being loaded"):
        host.tokenize("1").result(TIMEOUT)
    gate.set()
    read(ask(host))
    assert host.tokenize("1").result(TIMEOUT) == [1]
    loader.failures["c"] = loader.failures["b"] = EngineError("it is broken")
    host.load(LoadRequest("c"))
    read(ask(host))
    with pytest.raises(EngineError, match="could not load c: it is broken"):
        host.tokenize("1").result(TIMEOUT)
