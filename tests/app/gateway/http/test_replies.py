"""Replies to requests with tools: what is told as it comes is how the whole answer begins."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from app.gateway.http.replies import Reply
from engine.api.client import ChatMessage
from engine.api.lifecycle import FinishReason, Timings
from engine.api.sampling import SamplingParams
from engine.api.stream import RequestStream, Usage
from engine.api.tools import ToolCall
from engine.batch.plan import End, TokenOutput
from engine.text.codec import ChatCodec
from engine.text.encoder import ChatEncoder
from engine.text.processor import Ending, OutputProcessor
from engine.text.vocabulary import Vocabulary
from tests.engine.text.conftest import byte_level as byte_level
from tests.support.encoding import Here
from tests.support.tool_calling import RESPONSE, TOOLS, call, tool_calling
from tests.support.tool_forms import BARE, CALLS, template

PROMPT = "<|im_start|>user\nthe cat?<|im_end|>\n<|im_start|>assistant\n"
CALL = call("weather", '{"days": 2}')
USE = (ToolCall("weather", '{"days": 2}'),)
# As gpt-oss: a call is a message whose header, of special tokens, names its recipient.
CHANNELS: dict[str, Any] = {
    "start_anchor": "<|start|>assistant",
    "fields": {
        "thinking": {"open": "<|channel|>analysis<|message|>", "close": "<|end|>"},
        "content": {"open": "<|channel|>final<|message|>", "close": "<|end|>"},
        "tool_calls": {
            "open_pattern": r"<\|channel\|>commentary to=functions\.(?P<name>\w+).*?<\|message\|>",
            "close": "<|call|>",
            "repeats": True,
            "content": "json",
            "transform": {"function": {"name": "{name}", "arguments": "{content}"}},
        },
    },
}
JSON: dict[str, Any] = {
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "tool_calls": {
            "open_pattern": r"<\|python_tag\|>|(?=\{\s*\"name\")",
            "close": "<|im_end|>",
            "repeats": True,
            "content": "json",
            "transform": {"function": "{content}"},
        },
        "content": {"close": "<|im_end|>"},
    },
}


class Heard(NamedTuple):
    """One reply, as a client receives it.

    Attributes:
        early: pieces of text that came before its end.
        last: the text that came with its end.
    """

    early: list[str]
    last: str
    reply: Reply

    @property
    def sent(self) -> str:
        return "".join(self.early) + self.last


class Replying:
    """A model's replies, from its tokens to what a client is told, in this process."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer
        self._codec = ChatCodec(
            Vocabulary(tokenizer), Here(ChatEncoder(tokenizer, "model")), "model"
        )

    def hear(
        self,
        pieces: Iterable[str],
        *,
        prompt: str = PROMPT,
        lead: str = "",
        stop: tuple[str, ...] = (),
        reason: FinishReason = FinishReason.STOP,
    ) -> Heard:
        """A reply whose tokens are those of pieces of its text, one a step.

        Args:
            lead: what it begins with, which belongs to the prompt.
        """
        unread: list[Ending] = []
        processor = OutputProcessor(self._codec, lambda _: None, unread.append)
        stream, reply, early = RequestStream("r"), Reply(may_call=True), []
        asked, head = (
            tuple(self._tokenizer.encode(text, add_special_tokens=False)) for text in (prompt, lead)
        )
        start, sampling = (*asked, *head), SamplingParams(tools=TOOLS, stop=stop)
        processor.open(
            stream, sampling, 1, start, num_partial=len(head), key="model", repeats_partial=False
        )
        output = [
            token
            for piece in pieces
            for token in self._tokenizer.encode(piece, add_special_tokens=False)
        ]
        for token in output:
            processor.process([TokenOutput("r", (token,), None, None)], 0.0)
            if (delta := stream.drain()) is not None:
                reply.add_delta(delta)
                early.append(reply.news)
        end = self._tokenizer.convert_tokens_to_ids("<|im_end|>")
        usage = Usage(len(start), len(output) + 1, 0)
        ids = (*start, *output, end)
        processor.process([TokenOutput("r", (end,), End(reason, usage, Timings(), ids, None))], 0.0)
        for ending in unread:
            found = None
            with suppress(ValueError):  # What cannot be read stays text.
                found = self._codec.read_calls(
                    ending.context, ending.num_prompt, ending.tools, is_open=ending.is_open
                )
            processor.end(ending, found)
        delta = stream.drain()
        assert delta is not None
        reply.add_delta(delta)
        return Heard(early, reply.news, reply)


@pytest.fixture(scope="module")
def hermes(byte_level: PreTrainedTokenizerFast) -> Replying:
    return Replying(tool_calling(byte_level))


@pytest.fixture(scope="module")
def derived(byte_level: PreTrainedTokenizerFast) -> Replying:
    """As `hermes`, but its tokenizer states nothing of calls."""
    return Replying(tool_calling(byte_level, None))


def cut(text: str, cuts: Iterable[int]) -> list[str]:
    bounds = sorted({0, len(text), *(at % (len(text) + 1) for at in cuts)})
    return [text[a:b] for a, b in pairwise(bounds)]


FRAGMENTS = st.sampled_from(
    [
        *("the cat", " ", "\n", "é", "😀", "{", "<", "<tool", "_call>", "<tool_call>"),
        *("</tool_call>", CALL, "<think>", "</think>"),
    ]
)


@given(st.lists(FRAGMENTS, max_size=8), st.lists(st.integers(0, 999), max_size=12))
def test_what_is_told_piece_by_piece_is_the_whole_answer(
    hermes: Replying, fragments: list[str], cuts: list[int]
) -> None:
    text = "".join(fragments)
    heard, at_once = hermes.hear(cut(text, cuts)), hermes.hear([text])
    assert heard.sent == heard.reply.text
    assert (heard.reply.text, heard.reply.use) == (at_once.reply.text, at_once.reply.use)
    if heard.reply.use is not None:
        assert "<tool_call>" not in "".join(heard.early)


@pytest.mark.parametrize(
    ("text", "early", "last", "calls"),
    [
        ("the cat.\n", "the cat.", "\n", ()),
        ("the cat." + CALL, "the cat.", "", USE),
        ("the cat." + CALL + "\n\nthe mat." + CALL, "the cat.", "\n\nthe mat.", USE * 2),
        (CALL, "", "", USE),
        ("a <tool b <tool_call", "a <tool b", " <tool_call", ()),
        ("a <tool_call>b</tool_call> c", "a", " <tool_call>b</tool_call> c", ()),
        ("<think>\n<tool_call> is no call\n</think>\n\nthe cat." + CALL, "the cat.", "", USE),
        ("\nthe cat." + CALL, "\nthe cat.", "", USE),
    ],
)
def test_text_is_told_up_to_where_a_call_may_begin(
    hermes: Replying, text: str, early: str, last: str, calls: tuple[ToolCall, ...]
) -> None:
    heard = hermes.hear(text)
    assert ("".join(heard.early), heard.last) == (early, last)
    assert (() if heard.reply.use is None else heard.reply.use.calls) == calls


@pytest.mark.parametrize(
    ("lead", "text", "sent", "calls"),
    [
        ("the cat ", "is not." + CALL, "is not.", USE),
        ("the cat. ", CALL, "", USE),
        (
            "the cat.\n<tool_call>",
            '{"name": "weather", "arguments": {"days": 2}}</tool_call>',
            "",
            USE,
        ),
        ("the cat <tool", "_call> is none", "_call> is none", ()),
        ("<think>the mat", "</think>the cat." + CALL, "the cat.", USE),
        ("<think>the mat</think>\n", "\nthe cat." + CALL, "the cat.", USE),
    ],
)
@pytest.mark.parametrize("is_certain", [True, False])
def test_what_belongs_to_the_prompt_is_not_told(
    byte_level: PreTrainedTokenizerFast,
    lead: str,
    text: str,
    sent: str,
    calls: tuple[ToolCall, ...],
    is_certain: bool,
) -> None:
    response = copy.deepcopy(RESPONSE)
    if not is_certain:
        response["fields"]["tool_calls"]["open_pattern"] = r"(?i:\s*<tool_call>)"
    heard = Replying(tool_calling(byte_level, response)).hear(text, lead=lead)
    assert (heard.sent, heard.reply.text) == (sent, sent)
    assert (() if heard.reply.use is None else heard.reply.use.calls) == calls


BEGUN = ('{"name": ', '"weather"', ', "arguments": {', '"days": 2', "}}", "```json\n", "[", "]")


@given(st.lists(st.sampled_from(BEGUN) | FRAGMENTS, max_size=8), st.lists(st.integers(0, 999)))
def test_calls_without_tags_are_told_alike(
    derived: Replying, fragments: list[str], cuts: list[int]
) -> None:
    text = "".join(fragments)
    heard, at_once = derived.hear(cut(text, cuts)), derived.hear([text])
    assert heard.sent == heard.reply.text
    assert (heard.reply.text, heard.reply.use) == (at_once.reply.text, at_once.reply.use)


@pytest.mark.parametrize("form", [*CALLS, *BARE])
def test_calls_in_the_form_of_the_template_are_told(
    byte_level: PreTrainedTokenizerFast, form: str
) -> None:
    tokenizer = tool_calling(byte_level, None, template({**CALLS, **BARE}[form]))
    replying, encoder = Replying(tokenizer), ChatEncoder(tokenizer, "model")
    chat = [
        ChatMessage("user", "the cat?"),
        ChatMessage("assistant", "", tool_calls=USE),
        ChatMessage("tool", "rain"),
    ]
    text = tokenizer.decode(encoder.encode(chat, None)).split("assistant\n")[1]
    calls = text.partition("<|im_end|>")[0]
    for said in ("", "the cat.") if form in CALLS else ("",):
        for pieces in ([said + calls], list(said + calls)):
            heard = replying.hear(pieces)
            assert ("".join(heard.early), heard.last) == (said, "")
            use = heard.reply.use
            assert use is not None
            assert [(one.name, one.arguments) for one in use.calls] == [
                (one.name, one.arguments) for one in USE
            ]
        cut_off = replying.hear(list(said + calls), reason=FinishReason.LENGTH)
        assert (cut_off.sent, cut_off.reply.use) == (said + calls, None)
    broken = replying.hear(calls.replace("days", "da\u0000ys")[: len(calls) // 2] + " and so on")
    assert broken.sent == broken.reply.text


def test_text_that_begins_otherwise_is_told_as_it_comes(derived: Replying) -> None:
    for text in ('{"name": "delete", "a": 1}', "[1, 2]", "```python\nprint()\n```", "[link](x)"):
        heard = derived.hear(list(text))
        assert heard.sent == text
        assert len("".join(heard.early)) > len(text) - 3
        assert heard.reply.use is None


def test_a_reply_that_is_cut_off_is_told_as_it_was_written(hermes: Replying) -> None:
    text = "the cat." + CALL
    heard = hermes.hear(text, reason=FinishReason.LENGTH)
    assert (heard.sent, heard.reply.use) == (text, None)
    stopped = hermes.hear(text, stop=("cat",))
    assert (stopped.sent, stopped.reply.use) == ("the ", None)


def test_special_tokens_tell_a_call_from_a_message(byte_level: PreTrainedTokenizerFast) -> None:
    tokenizer = tool_calling(byte_level, CHANNELS)
    names = ["start", "channel", "message", "end", "call"]
    tokenizer.add_special_tokens({"additional_special_tokens": [f"<|{name}|>" for name in names]})
    replying, prompt = (
        Replying(tokenizer),
        "<|start|>user<|message|>the cat?<|end|><|start|>assistant",
    )
    thought = "<|channel|>analysis<|message|>the mat<|end|><|start|>assistant"
    before = "<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant"
    calls = '<|channel|>commentary to=functions.weather json<|message|>{"days": 2}<|call|>'
    heard = replying.hear([thought, before, calls], prompt=prompt)
    assert ("".join(heard.early), heard.last) == ("Let me see.", "")
    assert (heard.reply.thinking, heard.reply.use and heard.reply.use.calls) == ("the mat", USE)
    final = replying.hear([thought, "<|channel|>final<|message|>the cat."], prompt=prompt)
    assert ("".join(final.early), final.last) == ("the cat.", "")


def test_calls_in_plain_json_are_told_from_braces(byte_level: PreTrainedTokenizerFast) -> None:
    replying = Replying(tool_calling(byte_level, JSON))
    calls = replying.hear(['the cat.\n{"name": "weather", "arguments": {"days": 2}}'])
    assert ("".join(calls.early), calls.last) == ("the cat.", "")
    assert calls.reply.use is not None
    assert calls.reply.use.calls == USE
    braces = replying.hear("f() { return; }")
    assert ("".join(braces.early), braces.last) == ("f()", " { return; }")


def test_where_a_call_may_begin_anywhere_text_waits(byte_level: PreTrainedTokenizerFast) -> None:
    response = copy.deepcopy(RESPONSE)
    response["fields"]["tool_calls"]["open_pattern"] = r"[^<]*<tool_call>"
    heard = Replying(tool_calling(byte_level, response)).hear("the cat.")
    assert ("".join(heard.early), heard.last) == ("", "the cat.")


def test_what_was_told_stays_where_the_template_reads_otherwise(
    byte_level: PreTrainedTokenizerFast,
) -> None:
    response = copy.deepcopy(RESPONSE)
    response["fields"]["content"] = {"open": "<say>", "close": "</say>"}
    heard = Replying(tool_calling(byte_level, response)).hear(f"the cat.{CALL}<say>the mat.</say>")
    assert heard.sent == heard.reply.text == "the cat."
    assert heard.reply.use is not None
