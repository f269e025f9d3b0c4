"""Thinking whose tags models and templates leave out, write again or close at once."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from transformers import PreTrainedTokenizerFast

from engine.api.client import ChatMessage
from tests.engine.text.test_thinking import QWEN, R1, Model


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
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_thought_is_told_apart(byte_level: PreTrainedTokenizerFast, case: str) -> None:
    _, template, written, thinking, text = CASES[case]
    _, delta = Model(byte_level, template).reply(written, ChatMessage("user", "?"))
    assert (delta.thinking, delta.text) == (thinking, text)
