"""Thinking whose tags models and templates leave out, write again or close at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from engine.api.client import ChatMessage
from engine.api.errors import ErrorInfo
from engine.api.sampling import SamplingParams
from engine.api.stream import RequestStream
from engine.batch.plan import TokenOutput
from engine.text.arguments import NO_ARGUMENTS
from tests.engine.text.test_thinking import PLAIN, QWEN, R1, Model

# It cuts old replies at the closing tag and opens nothing, as the first template of DeepSeek R1.
CUTS = R1.replace("{{ '<think>\n' }}", "")
# The closing tag before a reply says that it has not thought, as in DeepSeek V3.1 and GLM-4.7.
CLOSES = (
    "{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\n' }}"
    "{%- if m.role == 'assistant' -%}{{ '</think>' }}{%- endif -%}{{ m.content + '<|im_end|>\n' }}"
    "{%- endfor -%}{{ '<|im_start|>assistant\n' }}"
    "{{ '<think>' if enable_thinking else '</think>' }}"
)
QUESTION = ChatMessage("user", "?")


class Case(NamedTuple):
    report: str
    template: str  # that of R1 ends the prompt with the opening tag
    reply: str
    thinking: str
    text: str


CASES = {
    "the template opened it": Case(
        "perplexityai/api-discussion#177", R1, "the cat\n</think>\n\nthe mat", "the cat", "the mat"
    ),
    "both opened it": Case("", R1, "<think>\nthe cat</think>the mat", "the cat", "the mat"),
    "closed at once": Case("", R1, "\n</think>\n\nthe mat", "", "the mat"),
    "closed, and opened by nobody": Case("", QWEN, "</think>\n\nthe mat", "", "the mat"),
    "an empty block, and another": Case(
        "",
        QWEN,
        "<think>\n\n</think>\n\n<think>\nthe cat\n</think>\n\nthe mat",
        "the cat",
        "the mat",
    ),
    "a second block": Case(
        "", QWEN, "<think>the cat</think>\n<think>is not</think>on", "the cat\nis not", "on"
    ),
    "a second block behind the prompt's": Case(
        "", R1, "the cat</think><think>is</think>on", "the catis", "on"
    ),
    "a tag that is quoted": Case(
        "", QWEN, "<think>the cat</think>the <think> tag", "the cat", "the <think> tag"
    ),
    "no thinking": Case("sgl-project/sglang#4711", QWEN, "the mat", "", "the mat"),
    "a template that cuts thinking, and no thinking": Case("", CUTS, "the mat", "", "the mat"),
    "closed by the prompt": Case("", CLOSES, "the mat", "", "the mat"),
    "closed by nobody's opening": Case(
        "vllm-project/vllm#13125", CUTS, "the cat\n</think>\n\nthe mat", "", "the cat\n\n\nthe mat"
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_thought_is_told_apart(byte_level: PreTrainedTokenizerFast, case: str) -> None:
    _, template, written, thinking, text = CASES[case]
    _, delta = Model(byte_level, template).reply(written, QUESTION)
    assert (delta.thinking, delta.text) == (thinking, text)


class Beginning(NamedTuple):
    """A reply of a model whose entry states `begins_thinking`."""

    report: str
    template: str
    reply: str
    thinking: str
    text: str
    arguments: Mapping[str, object] = NO_ARGUMENTS


OFF = {"enable_thinking": False}
BEGINNING = {
    "opened by nobody": Beginning(
        "raullenchai/Rapid-MLX#1570", CUTS, "the cat\n</think>\n\nthe mat", "the cat", "the mat"
    ),
    "the template has no tags": Beginning(
        "", PLAIN, "the cat\n</think>\n\nthe mat", "the cat", "the mat"
    ),
    "never closed": Beginning("sgl-project/sglang#4539", CUTS, "the cat", "the cat", ""),
    "opened all the same": Beginning(
        "", CUTS, "<think>\nthe cat\n</think>\n\nthe mat", "the cat", "the mat"
    ),
    "closed at once": Beginning("", CUTS, "</think>the mat", "", "the mat"),
    "the prompt opens it, too": Beginning("", R1, "the cat</think>the mat", "the cat", "the mat"),
    "switched off": Beginning("", CUTS, "the mat", "", "the mat", OFF),
    "switched off by the template": Beginning("", QWEN, "the mat", "", "the mat", OFF),
    "closed by the prompt": Beginning("", CLOSES, "the mat", "", "the mat"),
}


@pytest.mark.parametrize("case", BEGINNING)
def test_an_entry_may_say_that_replies_begin_as_thinking(
    byte_level: PreTrainedTokenizerFast, case: str
) -> None:
    _, template, written, thinking, text, arguments = BEGINNING[case]
    model = Model(byte_level, template, begins_thinking=True)
    _, delta = model.reply(written, QUESTION, arguments=arguments)
    assert (delta.thinking, delta.text) == (thinking, text)


@pytest.mark.parametrize("prompt", ["?", "?<think>\n"])
@pytest.mark.parametrize("written", ["<think>the cat</think>the mat", "the cat</think>the mat"])
def test_a_text_keeps_its_tags(
    byte_level: PreTrainedTokenizerFast, prompt: str, written: str
) -> None:
    """Clients that apply a template themselves look for them."""
    model = Model(byte_level, CUTS, begins_thinking=True)
    stream, ids = RequestStream("r"), model.ids(prompt)
    model.processor.open(stream, SamplingParams(), 0, ids, key="key")
    for token in model.ids(written):
        model.processor.process([TokenOutput("r", (token,))], 0.0)
    model.processor.close_all(ErrorInfo("unavailable_error", "the engine stops"))
    delta = stream.drain()
    assert delta is not None
    assert (delta.thinking, delta.text) == ("", written)


def test_a_reply_that_is_gone_on_with_begins_as_thinking(
    byte_level: PreTrainedTokenizerFast,
) -> None:
    codec = Model(byte_level, CUTS, begins_thinking=True).codec
    for reply, written in (
        (ChatMessage("assistant", "", "the cat"), "the cat"),
        (ChatMessage("assistant", "the mat", "the cat"), "the cat\n</think>\n\nthe mat"),
    ):
        prompt, num_partial = codec.encode_continuation([QUESTION, reply], None, 0)
        assert codec.decode(prompt[len(prompt) - num_partial :]) == written


def test_the_log_names_the_key_once(
    byte_level: PreTrainedTokenizerFast, caplog: pytest.LogCaptureFixture
) -> None:
    written = "the cat\n</think>\n\nthe mat"
    model = Model(byte_level, CUTS)
    model.reply("the mat", QUESTION)
    assert not caplog.messages
    for _ in range(2):
        model.reply(written, QUESTION)
    (told,) = caplog.messages
    assert "begins_thinking = true" in told
    Model(byte_level, CUTS, begins_thinking=True).reply(written, QUESTION)
    assert len(caplog.messages) == 1


PIECES = st.lists(
    st.sampled_from(["<think>", "</think>", "</th", "the cat", "\n", "`", " ", "é"]), max_size=8
)


@pytest.fixture(scope="module")
def either(byte_level: PreTrainedTokenizerFast) -> Mapping[bool, Model]:
    return {begins: Model(byte_level, CUTS, begins_thinking=begins) for begins in (False, True)}


@given(PIECES, st.booleans())
def test_no_reply_shows_the_tag_that_closes_its_thinking(
    either: Mapping[bool, Model], pieces: list[str], begins: bool
) -> None:
    written = "".join(pieces)
    _, delta = either[begins].reply(written, QUESTION)
    if "</think>" in written and "<think>" not in written and "`</think>" not in written:
        assert (delta.thinking + delta.text).count("</think>") < written.count("</think>")
        assert begins or not delta.thinking
    if begins:
        assert "</think>" in written or not delta.text
