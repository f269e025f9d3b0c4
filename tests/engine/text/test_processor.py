from __future__ import annotations

import copy
from array import array
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from engine.api.errors import ErrorInfo
from engine.api.lifecycle import FinishReason, Timings
from engine.api.logprobs import (
    Candidate,
    OutputToken,
    PromptLogprobs,
    PromptToken,
    TokenLogprobs,
)
from engine.api.sampling import SamplingParams
from engine.api.stream import Context, Delta, Finish, RequestStream, Usage
from engine.batch.plan import End, StopFound, TokenOutput
from engine.text.arguments import context_key
from engine.text.codec import ChatCodec
from engine.text.detokenizer import Detokenizer
from engine.text.encoder import ChatEncoder
from engine.text.processor import Ending, OutputProcessor
from engine.text.vocabulary import Vocabulary
from tests.support.encoding import Here

KEY = "model@revision:float32"
TIMINGS = Timings(0.1, 0.2, 0.3, 0.3, 0.01, 0.6)
PROMPT = (1, 2, 3, 4)
FAULT = ErrorInfo("engine_error", "the device is gone")


def scored(token_id: int) -> TokenLogprobs:
    """Logprobs of a token, as the core might report them."""
    return TokenLogprobs(-token_id / 8, 2, ((token_id + 1, -0.5), (token_id, -token_id / 8)))


class Desk:
    """A processor, and a core's side of a few requests, played by hand."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        template: str | None = "{{ messages[0].content }}assistant",
    ) -> None:
        tokenizer = copy.deepcopy(tokenizer)
        tokenizer.chat_template = template
        self.tokenizer = tokenizer
        self.aborted: list[str] = []
        self.asking: set[str] = set()
        codec = ChatCodec(Vocabulary(tokenizer), Here(ChatEncoder(tokenizer, KEY)), KEY)
        self.unread: list[Ending] = []
        self.processor = OutputProcessor(codec, self.aborted.append, self.unread.append)

    def open(
        self,
        request_id: str = "r",
        wake: Callable[[], None] | None = None,
        num_messages: int = 1,
        **sampling: object,
    ) -> RequestStream:
        stream = RequestStream(request_id, wake)
        params = SamplingParams().override(sampling)
        if params.logprobs is not None:
            self.asking.add(request_id)
        self.processor.open(
            stream, params, num_messages, PROMPT, key=context_key(KEY, params.template_arguments)
        )
        return stream

    def ids(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def tokens(self, *texts: str) -> tuple[int, ...]:
        """Ids of texts that are one token each."""
        found = [self.ids(text) for text in texts]
        assert all(len(token_ids) == 1 for token_ids in found), found
        return tuple(token_ids[0] for token_ids in found)

    def send(
        self, *token_ids: int, request_id: str = "r", end: End | None = None
    ) -> list[StopFound]:
        found = tuple(map(scored, token_ids)) if request_id in self.asking else ()
        return self.processor.process([TokenOutput(request_id, token_ids, end, found)], 0.0)


def end(
    reason: FinishReason, output: Sequence[int], error: ErrorInfo | None = None, cached: int = 2
) -> End:
    usage = Usage(len(PROMPT), len(output), cached)
    return End(reason, usage, TIMINGS, (*PROMPT, *output), error)


def last(stream: RequestStream) -> tuple[Delta, Finish]:
    delta = stream.drain()
    assert delta is not None
    assert delta.finish is not None
    return delta, delta.finish


@pytest.fixture
def desk(byte_level: PreTrainedTokenizerFast) -> Desk:
    return Desk(byte_level)


def test_text_comes_as_its_tokens_do_and_ends_with_the_truth(desk: Desk) -> None:
    stream = desk.open(num_messages=3)
    output = desk.ids("the cat")
    assert len(output) == 2
    desk.send(output[0])
    assert stream.drain() == Delta("the", 1)
    desk.send(output[1], end=end(FinishReason.LENGTH, output))
    assert stream.drain() == Delta(
        " cat",
        1,
        Finish(
            FinishReason.LENGTH,
            Usage(4, 2, 2),
            TIMINGS,
            context=Context(KEY, (*PROMPT, *output), 4),
        ),
    )


def test_an_end_without_tokens_still_ends(desk: Desk) -> None:
    stream = desk.open()
    output = desk.ids("the")
    desk.send(*output)
    desk.send(end=end(FinishReason.ABORT, output))
    delta, finish = last(stream)
    assert (delta.text, delta.num_tokens) == ("the", 1)
    assert finish.reason is FinishReason.ABORT
    assert finish.context == Context(KEY, (*PROMPT, *output), 2)


def test_the_token_that_ends_the_output_is_counted_and_not_shown(desk: Desk) -> None:
    for terminator in ("<|im_end|>", "."):  # a stop token id may name a token that has text
        stream = desk.open()
        output = (*desk.ids("the cat"), *desk.tokens(terminator))
        desk.send(*output, end=end(FinishReason.STOP, output))
        delta, finish = last(stream)
        assert (delta.text, delta.num_tokens) == ("the cat", 3)
        assert finish.usage.completion_tokens == 3
        assert finish.context is not None
        assert [*finish.context.token_ids] == [*PROMPT, *output]


def test_half_a_character_gives_no_delta_and_is_counted_later(desk: Desk) -> None:
    stream = desk.open()
    air = desk.ids("🜁")
    assert len(air) > 2
    for token_id in air[:-1]:
        desk.send(token_id)
        assert stream.drain() is None
    desk.send(air[-1])
    assert stream.drain() == Delta("🜁", len(air))


def test_half_a_character_is_flushed_at_the_end(desk: Desk) -> None:
    stream = desk.open()
    output = desk.ids("🜁")[:2]
    desk.send(*output, end=end(FinishReason.LENGTH, output))
    delta, _ = last(stream)
    assert (delta.text, delta.num_tokens) == ("\ufffd", 2)


def test_a_stop_string_cuts_text_and_tokens(desk: Desk) -> None:
    stream = desk.open(stop=("t on",))
    output = desk.tokens("the", " cat", " is", " not", " on", " the", " mat")
    assert desk.send(*output[:4]) == []
    assert stream.drain() == Delta("the cat is no", 4), "t may begin the stop string"
    assert desk.send(*output[4:6]) == [StopFound("r", 5)]
    assert stream.drain() is None
    assert desk.send(output[6]) == [], "reported once"
    assert stream.drain() is None
    desk.send(end=end(FinishReason.STOP, output[:5]))
    delta, finish = last(stream)
    assert (delta.text, delta.num_tokens) == ("", 1)
    assert finish.reason is FinishReason.STOP
    assert finish.stop == "t on"
    assert finish.usage == Usage(4, 5, 2)
    assert finish.context == Context(KEY, (*PROMPT, *output[:5]), 2)


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.STOP, FinishReason.ABORT])
@pytest.mark.parametrize("together", [True, False], ids=["same-output", "later-output"])
def test_a_stop_string_wins_over_an_end_that_the_core_found_behind_it(
    desk: Desk, reason: FinishReason, together: bool
) -> None:
    stream = desk.open(stop=("not",))
    output = desk.tokens("the", " cat", " is", " not", " on", " the")
    if together:
        assert desk.send(*output, end=end(reason, output)) == []
    else:
        assert desk.send(*output) == [StopFound("r", 4)]
        desk.send(end=end(reason, output))
    delta, finish = last(stream)
    assert (delta.text, delta.num_tokens) == ("the cat is ", 4)
    assert finish.reason is FinishReason.STOP
    assert finish.usage == Usage(4, 4, 2)
    assert finish.context == Context(KEY, (*PROMPT, *output[:4]), 2)


def test_held_back_text_is_flushed_at_the_end(desk: Desk) -> None:
    stream = desk.open(stop=("not at",))
    output = desk.tokens("the", " cat", " is", " not")
    desk.send(*output)
    assert stream.drain() == Delta("the cat is ", 4)
    desk.send(end=end(FinishReason.LENGTH, output))
    delta, finish = last(stream)
    assert (delta.text, delta.num_tokens) == ("not", 0)
    assert (finish.reason, finish.stop) == (FinishReason.LENGTH, None)


def test_a_stop_string_in_flushed_text(desk: Desk) -> None:
    stream = desk.open(stop=("e\ufffd",))
    output = (*desk.tokens("the"), desk.ids("🜁")[0])
    desk.send(*output)
    desk.send(end=end(FinishReason.LENGTH, output))
    delta, finish = last(stream)
    assert (delta.text, delta.num_tokens) == ("th", 2)
    assert finish.reason is FinishReason.STOP


@pytest.mark.parametrize(
    ("min_tokens", "text", "stopped_at"), [(3, "the cat", 3), (4, "the cat is not", 6)]
)
@pytest.mark.parametrize("split", [1, 2, 7])
def test_min_tokens_counts_tokens_not_outputs(
    desk: Desk, min_tokens: int, text: str, stopped_at: int, split: int
) -> None:
    stream = desk.open(stop=(" is", " on the"), min_tokens=min_tokens)
    output = desk.tokens("the", " cat", " is", " not", " on", " the", " mat")
    found: list[StopFound] = []
    for i in range(0, len(output), split):
        found += desk.send(*output[i : i + split])
    assert found == [StopFound("r", stopped_at)]
    desk.send(end=end(FinishReason.STOP, output[:stopped_at]))
    delta, _ = last(stream)
    assert (delta.text, delta.num_tokens) == (text, stopped_at)


def test_an_error_gives_the_text_so_far_and_no_context(desk: Desk) -> None:
    stream = desk.open(stop=("not at",))
    output = desk.tokens("the", " cat", " not")
    desk.send(*output)
    desk.send(end=end(FinishReason.ERROR, output, FAULT))
    delta, finish = last(stream)
    assert delta.text == "the cat not"
    assert (finish.reason, finish.error, finish.context) == (FinishReason.ERROR, FAULT, None)


def test_outputs_of_several_requests_do_not_mix(desk: Desk) -> None:
    streams = {name: desk.open(name, stop=("mat",)) for name in "abc"}
    air, cat = desk.ids("🜁"), desk.tokens("the", " cat")
    outputs = [
        TokenOutput("a", air[:2]),
        TokenOutput("b", cat[:1]),
        TokenOutput("a", air[2:]),
        TokenOutput("unknown", cat),
        TokenOutput("b", cat[1:]),
        TokenOutput("c", desk.tokens(" mat")),
    ]
    assert desk.processor.process(outputs, 0.0) == [StopFound("c", 1)]
    deltas = {name: stream.drain() for name, stream in streams.items()}
    assert deltas == {"a": Delta("🜁", len(air)), "b": Delta("the cat", 2), "c": Delta(" ", 1)}


def ids_of(delta: Delta | None) -> list[int]:
    assert delta is not None
    return [token.chosen.token_id for token in delta.logprobs]


def test_log_probabilities_come_with_the_text_of_each_token(desk: Desk) -> None:
    stream = desk.open(logprobs=2)
    output = the, end_id = desk.tokens("the", "<|im_end|>")
    after = Candidate(the + 1, desk.processor._codec.utf8(the + 1), -0.5)
    chosen = Candidate(the, b"the", -the / 8)
    desk.send(the)
    assert stream.drain() == Delta("the", 1, None, (OutputToken(chosen, 2, (after, chosen)),))
    desk.send(end_id, end=end(FinishReason.STOP, output))
    delta, _ = last(stream)
    assert (delta.text, delta.num_tokens) == ("", 1)
    assert delta.logprobs[0].chosen.text == "<|im_end|>"


def test_log_probabilities_of_parts_of_a_character_wait_for_it(desk: Desk) -> None:
    stream = desk.open(logprobs=0)
    air = desk.ids("🜁")
    for token_id in air[:-1]:
        desk.send(token_id)
        assert stream.drain() is None
    desk.send(air[-1])
    delta = stream.drain()
    assert ids_of(delta) == list(air)
    assert delta is not None
    assert b"".join(token.chosen.utf8 for token in delta.logprobs).decode() == "🜁"
    assert delta.logprobs[0].chosen.text == "\ufffd"


@pytest.mark.parametrize("together", [True, False], ids=["same-output", "later-output"])
def test_a_stop_string_cuts_log_probabilities(desk: Desk, together: bool) -> None:
    stream = desk.open(stop=("t on",), logprobs=1)
    output = desk.tokens("the", " cat", " is", " not", " on", " the", " mat")
    if together:
        desk.send(*output, end=end(FinishReason.LENGTH, output))
    else:
        for token_id in output:
            desk.send(token_id)
        desk.send(end=end(FinishReason.STOP, output[:5]))
    delta, _ = last(stream)
    assert (delta.text, delta.num_tokens) == ("the cat is no", 5)
    assert ids_of(delta) == list(output[:5])


class Reader:
    def __init__(self) -> None:
        self.wakes = 0

    def wake(self) -> None:
        self.wakes += 1


def test_each_reader_is_woken_once_and_only_for_news(desk: Desk) -> None:
    one, other, idle = Reader(), Reader(), Reader()
    # A bound method is a new object each time it is named.
    for request_id, wake in [
        ("a", one.wake),
        ("b", one.wake),
        ("c", other.wake),
        ("d", idle.wake),
        ("e", None),
    ]:
        desk.open(request_id, wake)
    (the,) = desk.tokens("the")
    half = desk.ids("🜁")[:1]
    outputs = [TokenOutput(request_id, (the,)) for request_id in "abce"]
    outputs += [TokenOutput("a", (the,)), TokenOutput("d", half)]
    desk.processor.process(outputs, 0.0)
    assert (one.wakes, other.wakes, idle.wakes) == (1, 1, 0)
    desk.processor.close_all(FAULT)
    assert (one.wakes, other.wakes, idle.wakes) == (2, 2, 1)


def test_a_wake_that_raises_hurts_nobody(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> None:
        raise RuntimeError("the loop is closed")

    reader = Reader()
    desk.open("a", broken)
    stream = desk.open("b", reader.wake)
    (the,) = desk.tokens("the")
    desk.processor.process([TokenOutput("a", (the,)), TokenOutput("b", (the,))], 0.0)
    assert reader.wakes == 1
    assert stream.drain() == Delta("the", 1)
    assert "the loop is closed" in caplog.text


def test_news_is_in_the_stream_when_its_reader_is_woken(desk: Desk) -> None:
    seen: list[Delta | None] = []
    stream = desk.open(wake=lambda: seen.append(stream.drain()))
    desk.send(*desk.tokens("the"))
    assert seen == [Delta("the", 1)]


def test_a_reply_that_cannot_be_made_text_ends_alone(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, sound = desk.open("broken"), desk.open("sound")
    (the,) = desk.tokens("the")
    desk.send(the, request_id="broken")
    real = Detokenizer.push

    def push(self: Detokenizer, token_id: int) -> str:
        if token_id == 7:
            raise IndexError("no such token")
        return real(self, token_id)

    monkeypatch.setattr(Detokenizer, "push", push)
    outputs = [TokenOutput("broken", (7,)), TokenOutput("sound", (the,))]
    assert desk.processor.process(outputs, 0.0) == []
    assert desk.aborted == ["broken"]
    assert sound.drain() == Delta("the", 1)
    delta, finish = last(broken)
    assert (delta.text, finish.reason, finish.context) == ("the", FinishReason.ERROR, None)
    assert finish.error is not None
    assert "no such token" in finish.error.message
    # What the core still says of it comes to nothing.
    desk.send(request_id="broken", end=end(FinishReason.ABORT, (the,)))
    assert broken.drain() is None


def test_a_request_id_is_in_use_until_its_end(desk: Desk) -> None:
    assert not desk.processor.is_open("r")
    desk.open("r")
    output = desk.tokens("the")
    desk.send(*output)
    assert desk.processor.is_open("r")
    desk.send(end=end(FinishReason.LENGTH, output))
    assert not desk.processor.is_open("r")


def test_closing_ends_every_open_stream_with_the_text_it_has(desk: Desk) -> None:
    half, fresh, done = desk.open("half", stop=("cats",)), desk.open("fresh"), desk.open("done")
    output = desk.tokens("the", " cat")
    desk.send(*output, request_id="half")
    desk.send(*output, request_id="done", end=end(FinishReason.LENGTH, output))
    desk.processor.close_all(FAULT)
    desk.processor.close_all(FAULT)
    desk.send(*output, request_id="half", end=end(FinishReason.LENGTH, output))

    delta, finish = last(half)
    assert (delta.text, delta.num_tokens) == ("the cat", 2)
    assert (finish.reason, finish.error, finish.usage) == (
        FinishReason.ERROR,
        FAULT,
        Usage(0, 2, 0),
    )
    assert last(fresh)[1].error == FAULT
    assert last(done)[1].reason is FinishReason.LENGTH
    assert [stream.drain() for stream in (half, fresh, done)] == [None] * 3


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_traffic_ends_each_stream_once_with_the_same_result(
    byte_level: PreTrainedTokenizerFast, data: st.DataObject
) -> None:
    """However tokens fall into outputs and calls, text, counts and end are those of one big output.

    The core is played with a lag: it hears of a stop some tokens late, as under overlapped steps.
    """
    desk = Desk(byte_level)
    text = data.draw(st.text("the ca日😀\ufffd", max_size=30))
    output = desk.ids(text)[: data.draw(st.integers(0, 40))]
    sampling: dict[str, object] = {
        "stop": tuple(data.draw(st.lists(st.text("the ca日", min_size=1, max_size=4), max_size=2))),
        "min_tokens": data.draw(st.integers(0, 6)),
        "logprobs": data.draw(st.none() | st.just(2)),
    }

    whole = desk.open("whole", **sampling)
    desk.send(*output, request_id="whole", end=end(FinishReason.LENGTH, output))
    expected, expected_finish = last(whole)

    stream = desk.open("split", **sampling)
    rest, sent, stops = output, 0, []
    lag = data.draw(st.integers(0, 5))
    while rest and (not stops or lag > 0):
        size = data.draw(st.integers(0, 4))
        stops += desk.send(*rest[:size], request_id="split")
        rest, sent = rest[size:], sent + size
        lag -= bool(stops)
    if stops and data.draw(st.booleans()):
        kept = output[: stops[0].num_output_tokens]
        desk.send(request_id="split", end=end(FinishReason.STOP, kept))
    else:
        known = output[: min(sent, len(output))]
        desk.send(request_id="split", end=end(FinishReason.LENGTH, known))
    desk.processor.close_all(FAULT)

    delta, finish = last(stream)
    assert delta == expected
    assert finish == expected_finish
    asked = sampling["logprobs"] is not None
    assert ids_of(delta) == list(output[: delta.num_tokens] if asked else ())
    assert delta.num_tokens == finish.usage.completion_tokens
    assert len(stops) <= 1


def test_the_tokens_of_a_prompt_come_with_their_text_the_first_one_before_what_is_known(
    desk: Desk,
) -> None:
    stream = desk.open(prompt_logprobs=1)
    prompt = PromptLogprobs(
        1, array("I", PROMPT[1:]), array("f", [-0.5, -1.5, -2.0]), array("I", [1, 2, 3]), 1,
        array("I", [2, 9, 5]), array("f", [-0.5, -0.25, float("-inf")]),
    )  # fmt: skip
    desk.processor.process([TokenOutput("r", (), prompt=prompt)], 0.0)
    delta = stream.drain()
    assert delta is not None
    utf8 = desk.processor._codec.utf8
    assert (delta.text, delta.num_tokens) == ("", 0)
    assert delta.prompt == (
        PromptToken(PROMPT[0], utf8(PROMPT[0])),
        PromptToken(2, utf8(2), -0.5, 1, (Candidate(2, utf8(2), -0.5),)),
        PromptToken(3, utf8(3), -1.5, 2, (Candidate(9, utf8(9), -0.25),)),
        PromptToken(4, utf8(4), -2.0, 3),
    )


@pytest.mark.parametrize(
    ("text", "sampling", "num_messages", "shown", "stop"),
    [
        (" the cat\nuser: the", {}, 1, "the cat", None),
        (" the cat\nassistant:", {}, 1, "the cat", None),
        ("\n the cat\n\nsystem:", {}, 1, "the cat\n", None),
        ("\nuser:", {}, 1, "", None),
        (" the cat user: the", {}, 1, "the cat user: the", None),
        (" the cat\nuser", {}, 1, "the cat\nuser", None),
        # What a request states is told as a stop string, whether it is the name of a role or not.
        (" the cat\nuser: the", {"stop": ["cat"]}, 1, "the ", "cat"),
        (" the cat\nuser: the", {"stop": ["\nuser:"]}, 1, "the cat", "\nuser:"),
        # Neither ends what is to go on past ends, what follows a structure, or a text.
        (" the\nuser: the", {"ignore_eos": True}, 1, "the\nuser: the", None),
        (" the\nuser: the", {"structure": {"regex": "(.|\n)*"}}, 1, "the\nuser: the", None),
        (" the\nuser: the", {}, 0, " the\nuser: the", None),
        (" \n", {}, 1, "", None),
    ],
)
def test_without_a_template_the_name_of_a_role_ends_a_reply(
    byte_level: PreTrainedTokenizerFast,
    text: str,
    sampling: dict[str, object],
    num_messages: int,
    shown: str,
    stop: str | None,
) -> None:
    desk = Desk(byte_level, template=None)
    stream = desk.open(num_messages=num_messages, **sampling)
    output = desk.ids(text)
    told, is_stopped = "", False
    for token_id in output:
        is_stopped |= bool(desk.send(token_id))
        told += delta.text if (delta := stream.drain()) is not None else ""
    desk.send(end=end(FinishReason.LENGTH, output))
    delta, finish = last(stream)
    assert (told + delta.text, finish.stop) == (shown, stop)
    assert is_stopped == (finish.reason is FinishReason.STOP)
    # The next turn is encoded anew, since the ids may end with the beginning of another message.
    is_chat = num_messages > 0 and not {"ignore_eos", "structure"} & sampling.keys()
    assert (finish.context is None) == (is_stopped and is_chat)


def test_with_a_template_the_name_of_a_role_ends_nothing(desk: Desk) -> None:
    stream = desk.open()
    output = desk.ids(" the\nuser: the")
    desk.send(*output, end=end(FinishReason.LENGTH, output))
    delta, finish = last(stream)
    assert delta.text == " the\nuser: the"
    assert finish.context is not None
