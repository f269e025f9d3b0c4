"""Streams: one writer, one reader, any threads."""

from __future__ import annotations

import threading

import pytest

from engine.api.errors import ErrorInfo
from engine.api.lifecycle import FinishReason, Timings
from engine.api.logprobs import Candidate, OutputToken, PromptToken
from engine.api.stream import Delta, Finish, RequestStream, Usage

END = Finish(FinishReason.STOP, Usage(1, 2, 0), Timings())


def test_drain_joins_what_came() -> None:
    stream = RequestStream("a")
    assert stream.drain() is None
    for text in ("one ", "two ", "three"):
        stream.put(Delta(text, 2))
    assert stream.drain() == Delta("one two three", 6)
    assert stream.num_output_tokens == 6
    stream.put(Delta("!", 1))
    assert stream.num_output_tokens == 6
    stream.put(Delta("", 0, END))
    assert stream.drain() == Delta("!", 1, END)
    assert stream.num_output_tokens == 7
    assert stream.drain() is None


def test_text_that_is_added_stands_between_what_was_put() -> None:
    stream = RequestStream("a")
    stream.put(Delta("one ", 1))
    stream.add("two ", 2)
    stream.put(Delta("three", 1, END))
    assert stream.drain() == Delta("one two three", 4, END)


def test_drain_joins_log_probabilities() -> None:
    stream = RequestStream("a")
    tokens = [OutputToken(Candidate(i, b"x", -1.0), 1, ()) for i in range(4)]
    stream.put(Delta("x", 1, logprobs=(tokens[0],)))
    stream.put(Delta("", 0))
    stream.put(Delta("xxx", 3, END, tuple(tokens[1:])))
    assert stream.drain() == Delta("xxxx", 4, END, tuple(tokens))


def test_drain_joins_the_tokens_of_a_prompt() -> None:
    stream = RequestStream("a")
    tokens = [PromptToken(i, b"x", -1.0, 1) for i in range(3)]
    stream.put(Delta("", 0, prompt=(tokens[0],)))
    stream.put(Delta("", 0, END, prompt=tuple(tokens[1:])))
    assert stream.drain() == Delta("", 0, END, prompt=tuple(tokens))


def test_wait_returns_when_there_is_news_or_the_time_is_up() -> None:
    stream = RequestStream("a")
    assert not stream.wait(0.001)
    stream.put(Delta("x", 1))
    assert stream.wait(0.001)


@pytest.mark.parametrize("adds", [False, True])
def test_a_reader_on_another_thread_gets_everything_in_order(adds: bool) -> None:
    stream = RequestStream("a")
    read: list[Delta] = []
    reader = threading.Thread(target=lambda: read.extend(stream))
    reader.start()
    for i in range(2_000):
        if adds:
            stream.add(f"{i} ", 1)
        else:
            stream.put(Delta(f"{i} ", 1))
    stream.put(Delta("", 0, END))
    reader.join(30)
    assert not reader.is_alive()
    assert "".join(delta.text for delta in read).split() == [str(i) for i in range(2_000)]
    assert sum(delta.num_tokens for delta in read) == 2_000
    assert [delta.finish for delta in read if delta.finish] == [END]


def test_one_that_was_never_served() -> None:
    woken: list[int] = []
    stream = RequestStream("a", lambda: woken.append(1))
    error = ErrorInfo("overloaded_error", "the queue is full", "queue_limit")
    stream.end_unserved(FinishReason.ERROR, error)
    delta = stream.drain()
    assert delta is not None
    assert delta.finish is not None
    assert (delta.finish.reason, delta.finish.error) == (FinishReason.ERROR, error)
    assert delta.finish.usage == Usage(0, 0, 0)
    assert woken == [1]
