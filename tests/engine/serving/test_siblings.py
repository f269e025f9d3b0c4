"""Siblings: the replies to one request, whose prompt is checked and encoded once."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from engine.api.client import ChatMessage, LoadRequest, Submission
from engine.api.errors import InvalidRequestError
from engine.api.sampling import SamplingParams
from engine.api.stream import RequestStream
from engine.serving.host import EngineHost
from tests.support.asking import ask, error_of, read
from tests.support.scripted_loader import TIMEOUT, Loader, WordCodec

ARGUMENTS = {"documents": ["x" * 1000]}


class HeldCodec(WordCodec):
    """Encodes once `gate` is open."""

    def __init__(self) -> None:
        super().__init__("a", self._wait)
        self.gate = threading.Event()
        self.error: InvalidRequestError | None = None
        self.num_encoded = 0
        self.too_long: InvalidRequestError | None = None
        self.num_measured = 0

    def check_size(self, size: int, max_model_len: int) -> None:
        self.num_measured += 1
        if self.too_long is not None:
            raise self.too_long

    def _wait(self, messages: Sequence[ChatMessage]) -> None:
        assert self.gate.wait(TIMEOUT)
        self.num_encoded += 1
        if self.error is not None:
            raise self.error


@pytest.fixture
def codec(host: EngineHost, loader: Loader) -> HeldCodec:
    held = HeldCodec()
    loader.codecs["a"] = held
    host.load(LoadRequest("a"))
    held.gate.set()
    read(ask(host, "5"))  # The model is there.
    held.gate.clear()
    held.num_encoded = held.num_measured = 0
    return held


def ask_for(host: EngineHost, texts: Sequence[str], **sampling: object) -> list[RequestStream]:
    """A reply to each text, as forks of the first, all of them submitted before one is encoded."""
    stated = {"max_tokens": 4, "chat_template_kwargs": ARGUMENTS, **sampling}
    chats = {text: (ChatMessage("user", text),) for text in texts}
    streams = [
        host.submit(
            Submission(
                messages=chats[text],
                sampling={**stated, "seed": number},
                request_id=f"r{number}",
                fork_of="r0" if number else None,
            )
        )
        for number, text in enumerate(texts)
    ]
    host.detokenize([1]).result(TIMEOUT)  # The text thread has taken in what came before.
    return streams


def test_their_prompt_is_encoded_once(host: EngineHost, codec: HeldCodec) -> None:
    streams = ask_for(host, ["1 2 3"] * 8, temperature=0.0)
    codec.gate.set()
    assert len({read(stream)[0] for stream in streams}) == 1
    assert codec.num_encoded == 1


def test_what_they_share_is_checked_once(
    host: EngineHost, codec: HeldCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[SamplingParams] = []
    check = SamplingParams.__post_init__
    monkeypatch.setattr(
        SamplingParams, "__post_init__", lambda self: (checked.append(self), check(self))
    )
    streams = ask_for(host, ["1 2 3"] * 8)
    assert len(checked) == 1
    codec.gate.set()
    for stream in streams:
        read(stream)


def test_a_refusal_is_that_of_all(host: EngineHost, codec: HeldCodec) -> None:
    """One that takes 10 s to be found would take that for each of them."""
    codec.error = InvalidRequestError("it does not come to an end", "prompt")
    streams = ask_for(host, ["1 2 3"] * 8)
    codec.gate.set()
    assert {error_of(stream).message for stream in streams} == {codec.error.message}
    assert codec.num_encoded == 1


def test_a_refusal_at_once_is_that_of_all(host: EngineHost, codec: HeldCodec) -> None:
    """Of 4 MB, the bytes of a text were counted for 0.3 s where 128 replies were asked for."""
    codec.too_long = InvalidRequestError("it is too long", "prompt")
    streams = ask_for(host, ["1 2 3"] * 8)
    assert {error_of(stream).message for stream in streams} == {codec.too_long.message}
    assert codec.num_measured == 1
    codec.too_long = None
    codec.gate.set()
    assert {read(stream)[1].error for stream in ask_for(host, ["1 2 4"] * 2)} == {None}


def test_those_that_come_late_share_as_well(host: EngineHost, codec: HeldCodec) -> None:
    """Their first may have been encoded before they came."""
    chat = (ChatMessage("user", "1 2 3"),)
    streams = [
        host.submit(Submission(messages=chat, request_id=f"l{number}", fork_of="gone"))
        for number in range(4)
    ]
    codec.gate.set()
    for stream in streams:
        read(stream)
    assert codec.num_encoded == 1


def test_another_goes_on_where_the_first_was_aborted(host: EngineHost, codec: HeldCodec) -> None:
    blocker = host.submit(Submission(messages=(ChatMessage("user", "7"),), request_id="before"))
    streams = ask_for(host, ["1 2 3"] * 3)
    host.abort("r0")
    host.detokenize([1]).result(TIMEOUT)
    codec.gate.set()
    assert read(streams[1])[0] == read(streams[2])[0] != ""
    assert codec.num_encoded == 2
    host.abort("before")
    read(blocker)


def test_a_fork_of_another_prompt_has_its_own(host: EngineHost, codec: HeldCodec) -> None:
    one, other = ask_for(host, ["1 2 3", "1 2 4"])
    codec.gate.set()
    assert read(one)[0] != read(other)[0]
    assert codec.num_encoded == 2


def test_a_seed_that_is_wrong_is_refused_alone(host: EngineHost, codec: HeldCodec) -> None:
    chat, sampling = (ChatMessage("user", "1"),), {"max_tokens": 4}
    first, second = (
        host.submit(
            Submission(
                messages=chat,
                sampling={**sampling, "seed": seed},
                request_id=f"s{seed}",
                fork_of="s0" if seed else None,
            )
        )
        for seed in (0, -2)
    )
    codec.gate.set()
    assert error_of(second).param == "seed"
    assert read(first)[1].error is None
