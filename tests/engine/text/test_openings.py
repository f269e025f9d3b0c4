"""Openings: how tool calls begin, found in what tokenizers state of them."""

from __future__ import annotations

import logging

import pytest
from transformers import PreTrainedTokenizerFast

from engine.api.client import ChatMessage
from engine.api.errors import InvalidRequestError
from engine.text.job import PromptJob
from engine.text.openings import Openings, openings
from engine.text.reading import CallReader
from tests.support.encoding import Here, start_pool
from tests.support.tool_calling import RESPONSE, tool_calling

# As the formats of models are, but for what follows the opening.
FORMATS = {
    "hermes": (r"\s*<tool_call>", {"<tool_call>"}),
    "qwen3-coder": (r"<tool_call>\s*<function=(?P<name>\w+)>", {"<tool_call>"}),
    "gemma": (r"<\|tool_call>call:(?P<name>\w+)", {"<|tool_call>call:"}),
    "mistral": (r"\[TOOL_CALLS\](?P<name>[\w-]+)\[ARGS\]", {"[TOOL_CALLS]"}),
    "gpt-oss": (
        r"<\|channel\|>commentary to=functions\.(?P<name>\w+).*?<\|message\|>",
        {"<|channel|>commentary to=functions."},
    ),
    "gpt-oss, its channel after its recipient": (
        r"(?:<\|channel\|>commentary\s+)?to=functions\.(?P<name>\w+)\s*<\|message\|>",
        {"<|channel|>commentary", "to=functions."},
    ),
    "deepseek": (
        "\\s*<\uff5ctool\u2581call\u2581begin\uff5c>(?P<name>[^\\n<]+)",
        {"<\uff5ctool\u2581call\u2581begin\uff5c>"},
    ),
    "llama": (r"<\|python_tag\|>|\s*(?=\{\s*\"name\")", {"<|python_tag|>", "{"}),
    "inkling, whose headers may have any text": (r"[^<]*<\|content_invoke_tool_json\|>", set()),
}
EXPRESSIONS = {
    "several": (r"<a>|<b>|<ab>", {"<a>", "<b>", "<ab>"}),
    "one within another": (r"<a>b?|<a>c", {"<a>"}),
    "a part that may be missing": (r"(?:<a>)?<b>", {"<a><b>", "<b>"}),
    "a part that may come again": (r"(?:<a>)+<b>", {"<a>"}),
    "a group, an atomic one, a small set": (r"(<)(?>[ab])>", {"<a>", "<b>"}),
    "what stands before it": (r"(?<=\n)^<a>(?!x)", {"<a>"}),
    "blanks that must be there": (r"\n[ \t]*<a>\s+b", {"<a>"}),
    "verbose": (r"(?x) <a> # a call", {"<a>"}),
    "longer than is looked at": ("a" * 99, {"a" * 64}),
    "nothing for certain": (r"(?:<a>)?", set()),
    "white space": (r"\s+", set()),
    "any character": (r".*<a>", set()),
    "a range": (r"[a-z]<a>", set()),
    "all but one character": (r"[^a]<a>", set()),
    "any case": (r"(?i)<a>", set()),
    "any case within": (r"(?i:<a>)", set()),
    "too many": ("|".join(map(chr, range(0x4E00, 0x4E40))), set()),
    "more than two know together": ("[ab]" * 20, set()),
    # What follows is of `regex`, which Python reads otherwise, or not at all.
    "mistakes allowed": (r"(?:<tool_call>){e<=1}", set()),
    "a class by its name": (r"[[:alpha:]]<a>", set()),
    "a property": (r"\p{L}<a>", set()),
    "itself within": (r"<a>(?R)?", set()),
    # What follows is no expression.
    "not closed": (r"(<a>", set()),
    "too deep": ("(" * 5000 + ")" * 5000, set()),
}


def of(**field: object) -> set[str]:
    return set(openings({"fields": {"tool_calls": field}}))


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [*FORMATS.values(), *EXPRESSIONS.values()],
    ids=[*FORMATS, *EXPRESSIONS],
)
def test_they_are_read_in_an_expression(pattern: str, expected: set[str]) -> None:
    assert of(open_pattern=pattern) == expected


def test_they_may_be_stated_as_they_are() -> None:
    assert of(open="<|START_ACTION|>") == {"<|START_ACTION|>"}
    assert of(open=["\n<a>", "<b>", "<a>b"]) == {"<a>", "<b>"}


@pytest.mark.parametrize(
    "field",
    [
        *({}, {"open": ""}, {"open": " \n"}, {"open": []}, {"open": [1]}, {"open": 1}),
        *({"open_pattern": 1}, {"open": "<a>", "open_pattern": "<b>"}),
    ],
)
def test_where_none_is_stated_none_is_certain(field: dict[str, object]) -> None:
    assert of(**field) == set()
    assert openings(None) == openings({"fields": {"tool_calls": "<a>"}}) == ()


@pytest.mark.long
def test_an_expression_that_never_answers_ends_its_process_alone(
    byte_level: PreTrainedTokenizerFast, caplog: pytest.LogCaptureFixture
) -> None:
    # Each character of the text more nearly doubles the time that a failure takes.
    pattern = f"(?!(?:x|xx)+[yz])(?:{'x' * 60}|{'x' * 59}q)"
    response = {"fields": {**RESPONSE["fields"], "tool_calls": {"open_pattern": pattern}}}
    pool = start_pool(tool_calling(byte_level, response), "model", 0.5)
    try:
        pool.ready()
        with caplog.at_level(logging.WARNING):
            assert CallReader(pool, "model").openings() is None
        assert "did not finish within 0.5 s" in caplog.text
        assert pool.run(PromptJob((ChatMessage("user", "the cat?"),)))
    finally:
        pool.close()


def test_a_model_whose_openings_take_too_long_has_none(caplog: pytest.LogCaptureFixture) -> None:
    class Slow:
        def read_calls(self, *_: object, is_open: bool) -> None: ...

        def openings(self) -> Openings:
            raise InvalidRequestError("it did not finish", "prompt")

    with caplog.at_level(logging.WARNING):
        assert CallReader(Here(Slow()), "model").openings() is None
    assert "model: replies to requests with tools are sent only at their ends" in caplog.text
