"""Tool calls in the form in which the chat template itself writes them."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from engine.api.client import ChatMessage
from engine.api.tools import ToolCall, ToolUse
from engine.text.encoder import ChatEncoder
from engine.text.forms import begins_call
from engine.text.reading import CallReader
from tests.support.encoding import Here
from tests.support.tool_calling import tool_calling
from tests.support.tool_forms import BARE, CALLS, template

QUESTION = ChatMessage("user", "the cat?")
PROPERTIES = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "deep": {"type": ["object", "null"]},
}
TOOLS = tuple(
    {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": PROPERTIES}},
    }
    for name in ("weather", "get-time")
)
FIRST = ToolCall("weather", json.dumps({"city": "5", "days": 2, "deep": {"a": [1, True]}}))
SECOND = ToolCall("get-time", json.dumps({"city": 'Köln "<b>", {it}'}, ensure_ascii=False))
EMPTY = ToolCall("weather", "{}")
ALL = CALLS | BARE


def ids(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


class Model:
    """A tokenizer whose template writes calls in one form."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, calls: str) -> None:
        self.tokenizer = tool_calling(tokenizer, None, template(calls))
        self.encoder = ChatEncoder(self.tokenizer, "model")

    def written(self, *calls: ToolCall) -> str:
        """How the template writes them."""
        reply = ChatMessage("assistant", "", tool_calls=calls)
        chat = [QUESTION, reply, ChatMessage("tool", "rain", tool_call_id="c1")]
        text = self.tokenizer.decode(self.encoder.encode(chat, None))
        return text.split("assistant\n")[1].partition("<|im_end|>")[0]

    def read(self, text: str, tools: Sequence[dict[str, object]] = TOOLS) -> ToolUse | None:
        prompt = ids(self.tokenizer, "<|im_start|>assistant\n")
        written = ids(self.tokenizer, f"{text}<|im_end|>")
        return self.encoder.read_calls(prompt, written, tools, is_open=False)


@pytest.mark.parametrize("form", ALL)
def test_a_history_keeps_arguments_that_are_broken(models: object, form: str) -> None:
    call = ToolCall("weather", '{"city": "Os', "c1")
    written = models(form).written(call)  # type: ignore[operator]
    assert "INVALID_JSON" in written
    assert "Os" in written


@pytest.fixture(scope="module")
def models(byte_level: PreTrainedTokenizerFast) -> object:
    return cache(lambda form: Model(byte_level, ALL[form]))


def plain(use: ToolUse | None) -> list[tuple[str, object]]:
    return [] if use is None else [(one.name, json.loads(one.arguments)) for one in use.calls]


def told(*calls: ToolCall) -> list[tuple[str, object]]:
    return plain(ToolUse(calls))


@pytest.mark.parametrize("form", ALL)
def test_what_the_template_writes_is_read(models: object, form: str) -> None:
    model: Model = models(form)  # type: ignore[operator]
    one = model.read(model.written(FIRST))
    assert (plain(one), one and one.content) == (told(FIRST), "")
    assert plain(model.read(model.written(EMPTY))) == told(EMPTY)
    assert model.read("the cat.") is None
    if form == "json, one call":
        return
    several = model.read(model.written(FIRST, SECOND, EMPTY))
    assert (plain(several), several and several.content) == (told(FIRST, SECOND, EMPTY), "")


@pytest.mark.parametrize("form", CALLS)
def test_text_around_calls_is_content(models: object, form: str) -> None:
    model: Model = models(form)  # type: ignore[operator]
    found = model.read(f"the cat.\n\n{model.written(FIRST)}\nthe mat.")
    assert (plain(found), found and found.content) == (told(FIRST), "the cat.\n\nthe mat.")


@pytest.mark.parametrize("form", ALL)
def test_a_reply_that_breaks_off_has_no_half_a_call(models: object, form: str) -> None:
    """Wherever it does, what is read is a whole call or nothing."""
    model: Model = models(form)  # type: ignore[operator]
    calls = (FIRST,) if form == "json, one call" else (FIRST, SECOND)
    text = model.written(*calls)
    whole = told(*calls)
    for length in range(len(text)):
        try:
            found = plain(model.read(text[:length]))
        except ValueError:
            continue
        assert found == whole[: len(found)]


@pytest.mark.parametrize("form", ALL)
def test_a_name_that_was_not_offered(models: object, form: str) -> None:
    """In its tags it is a call all the same, which is for the client to refuse; without, text."""
    model: Model = models(form)  # type: ignore[operator]
    call = ToolCall("delete", SECOND.arguments)
    assert plain(model.read(model.written(call))) == ([] if form in BARE else told(call))


@pytest.mark.parametrize("form", ALL)
def test_ids_that_a_client_made_up_are_taken(models: object, form: str) -> None:
    """Some templates check them, or look for the name in them."""
    model: Model = models(form)  # type: ignore[operator]
    for names in (("call_abc_0",), ("",), ("functions.weather:0",), ("<|im_end|>",)):
        reply = ChatMessage("assistant", "", tool_calls=(ToolCall("weather", "{}", names[0]),))
        outcome = ChatMessage("tool", "rain", tool_call_id=names[0], name="weather")
        text = model.tokenizer.decode(model.encoder.encode([QUESTION, reply, outcome], None))
        assert plain(model.read(text.split("assistant\n")[1].partition("<|im_end|>")[0])) == told(
            EMPTY
        )
        assert text.count("<|im_end|>") == 3


def test_ids_in_a_reply_are_its_calls(models: object) -> None:
    for form, name in {
        "a list with ids of nine": "abcdefgh1",
        "a header with an id": "abcdefgh1",
        "a number behind the name": "functions.weather:0",
        "the id has the name": "functions.weather:0",
    }.items():
        model: Model = models(form)  # type: ignore[operator]
        found = model.read(model.written(ToolCall("weather", "{}", name)))
        assert found is not None
        assert found.calls[0].id == name


@pytest.mark.parametrize(
    ("text", "calls", "content"),
    [
        ('{"name": "weather", "arguments": {"days": 2}}', [("weather", {"days": 2})], ""),
        ('\n {"name":"weather","parameters":{}}', [("weather", {})], ""),
        ('```json\n{"name": "weather", "arguments": {}}\n```', [("weather", {})], ""),
        ('```\n{"name": "weather", "arguments": {}}\n```\nIt is.', [("weather", {})], "It is."),
        ('{"name": "weather", "arguments": "{\\"days\\": 2}"}', [("weather", {"days": 2})], ""),
        (
            '[{"name": "weather", "arguments": {}}, {"name": "get-time", "arguments": {}}]',
            [("weather", {}), ("get-time", {})],
            "",
        ),
        (
            '{"name": "weather", "arguments": {}}\n{"name": "get-time", "arguments": {}}',
            [("weather", {}), ("get-time", {})],
            "",
        ),
        ('{"name": "weather", "arguments": {}} and so on', [("weather", {})], "and so on"),
        ('```xml\n{"name": "weather", "arguments": {}}\n```', [("weather", {})], ""),
        # Brackets that are missing behind the arguments, or too many.
        ('{"name": "weather", "arguments": {"days": 2} \n', [("weather", {"days": 2})], ""),
        ('```json\n{"name": "weather", "arguments": {}\n```\nIt is.', [("weather", {})], "It is."),
        ('[{"name": "weather", "arguments": {"days": 2}', [("weather", {"days": 2})], ""),
        (
            '[{"name": "weather", "arguments": {}}, {"name": "get-time", "arguments": {}}',
            [("weather", {}), ("get-time", {})],
            "",
        ),
        ('{"name": "weather", "arguments": {"days": 2}}}', [("weather", {"days": 2})], ""),
        ('```\n{"name": "weather", "arguments": {}}}\n]\n```\nIt is.', [("weather", {})], "It is."),
        (
            '{"name": "weather", "arguments": {}}}\n{"name": "get-time", "arguments": {}}',
            [("weather", {}), ("get-time", {})],
            "",
        ),
        # No call: another name, no arguments, in the midst of text, cut off, no JSON.
        ('{"name": "delete", "arguments": {}}', [], ""),
        ('{"name": "weather"}', [], ""),
        ('{"name": "weather", "arguments": [1]}', [], ""),
        ('{"name": ["weather"], "arguments": {}}', [], ""),
        ('Here: {"name": "weather", "arguments": {}}', [], ""),
        ('{"name": "weather", "arguments": {"days": ', [], ""),
        ('{"name": "weather", "arguments": {days: 2}}', [], ""),
        ('{"name": "weather", "arguments": {} and so on', [], ""),
        ('{"name": "weather", "arguments": {"deep": {"a": 1}', [], ""),
        ('{"name": "weather", "arguments": "the cat"', [], ""),
        ('[{"name": "weather", "arguments": {}}, {"name": "delete", "arguments": {}}]', [], ""),
        ("{}", [], ""),
        ("[1, 2]", [], ""),
    ],
)
def test_calls_whose_tags_were_forgotten(
    models: object, text: str, calls: list[tuple[str, object]], content: str
) -> None:
    for form in ("hermes", "a tag for each argument", "json, one call"):
        found = models(form).read(text)  # type: ignore[operator]
        assert (plain(found), "" if found is None else found.content) == (calls, content)
        if calls:
            assert models(form).read(text, ()) is None  # type: ignore[operator]


@given(st.sampled_from(["json", "list", "python", "label"]), st.integers(0, 60))
def test_whether_text_begins_a_call_is_open_until_it_is_known(kind: str, length: int) -> None:
    whole = {
        "json": '```json\n{ "name" : "weather", "arguments": {}}',
        "list": '[\n{"name": "weather", "arguments": {}}]',
        "python": '[weather(city="x")]',
        "label": '``` xml\n{"name": "weather", "arguments": {}}',
    }[kind]
    decided = next(n for n in range(len(whole)) if begins_call(whole[:n], ["weather"]))
    assert begins_call(whole[:length], ["weather"]) is (True if length >= decided else None)
    assert begins_call(whole[: min(length, decided - 1)] + "%", ["weather"]) is False
    assert begins_call(whole[:length], []) is False


@pytest.mark.parametrize(
    ("form", "wrong"),
    [
        ("hermes", '<tool_call>\n{"name": "weather", "arguments": {"days": 2,,}}\n</tool_call>'),
        ("hermes", "<tool_call>{}</tool_call>"),
        ("hermes", '<tool_call>{"name": "weather", "arguments": [1]}</tool_call>'),
        ("a list in tags", "<tool_calls>[]</tool_calls>"),
        ("a list in tags", '<tool_calls>["weather"]</tool_calls>'),
        ("a header with an id", "[TOOL_CALLS]weather{}"),
        ("a header with an id", "[TOOL_CALLS]weather[ARGS]2"),
        ("a tag for each argument", "<tool_call>\n<function=weather\n</tool_call>"),
        ("a tag for each argument", "<function=weather>\n<parameter=days>\n2\n</function>"),
        ("tags for keys and for values", "<tool_call>tags are not told"),
        ("python in tags", "<|tool_call_start|>[weather(2)]<|tool_call_end|>"),
        ("python in tags", "<|tool_call_start|>[weather(**{})]<|tool_call_end|>"),
        ("python in tags", '<|tool_call_start|>[weather(city=open("x"))]<|tool_call_end|>'),
        ("python in tags", "<|tool_call_start|>[weather(city=" + "[" * 9999),
        ("an object without marks", "<|tool_call>call:weather{days:}<tool_call|>"),
        ("an object without marks", '<|tool_call>call:weather{days:<|"|>2}<tool_call|>'),
        ("an object without marks", "<|tool_call>call:weather{days:" + "[" * 9999),
    ],
)
def test_what_begins_as_a_call_and_is_none_cannot_be_read(
    models: object, form: str, wrong: str
) -> None:
    model: Model = models(form)  # type: ignore[operator]
    with pytest.raises(ValueError, match=r"call|argument|list|JSON|malformed"):
        model.read(f"the cat. {wrong}")


@pytest.mark.parametrize(
    ("form", "text", "calls"),
    [
        ("hermes", "Tags such as <tool_call> are not told.", []),
        ("hermes", '<tool_call>{"name": "weather", "arguments": {}}', [("weather", {})]),
        ("hermes", '<tool_call>\n[{"name": "weather", "parameters": {}}]', [("weather", {})]),
        (
            "hermes",
            '<tool_call>\n{"name": "weather", "arguments": {}\n</tool_call>\n'
            '<tool_call>\n{"name": "get-time", "arguments": {}}}\n</tool_call>',
            [("weather", {}), ("get-time", {})],
        ),
        (
            "a tag for each argument",
            "<function=weather>\n<parameter=city>\n</parameter> is\n</parameter>\n</function>",
            [("weather", {"city": "</parameter> is"})],
        ),
        (
            "a tag for each argument",
            "<tool_call><function=weather><parameter=days>7</parameter></function></tool_call>",
            [("weather", {"days": 7})],
        ),
        (
            "a tag for each argument",
            "<function=weather>\n<parameter=deep>\n{'a': None}\n</parameter>\n"
            "<parameter=other>\nTrue\n</parameter>\n</function>",
            [("weather", {"deep": {"a": None}, "other": True})],
        ),
        (
            "python in tags",
            "<|tool_call_start|>[weather(city='a\nb', deep={'a': null})]",
            [("weather", {"city": "a\nb", "deep": {"a": None}})],
        ),
    ],
)
def test_models_write_it_a_little_otherwise(
    models: object, form: str, text: str, calls: list[tuple[str, object]]
) -> None:
    found = models(form).read(text)  # type: ignore[operator]
    assert (plain(found), "" if found is None else found.content) == (calls, "")


def test_tags_around_a_call_and_within_one(byte_level: PreTrainedTokenizerFast) -> None:
    """A tag that is a special token is one all the same, and one that an argument quotes is not."""
    tokenizer = tool_calling(byte_level, None)
    special = ["<|tool_call_start|>", "<|tool_call_end|>"]
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    model = Model(tokenizer, CALLS["python in tags"])
    found = model.read("<|tool_call_start|>[weather()]<|tool_call_end|>the cat.")
    assert (plain(found), found and found.content) == (told(EMPTY), "the cat.")
    quoting = '{"name": "weather", "arguments": {"city": "<|tool_call_start|>[weather()]"}}'
    assert plain(model.read(quoting))[0][0] == "weather"
    hermes = Model(byte_level, CALLS["hermes"])
    text = '{"name": "weather", "arguments": {"city": "<tool_call>{}</tool_call>"}}'
    assert plain(hermes.read(text)) == [("weather", {"city": "<tool_call>{}</tool_call>"})]


def test_no_call_is_looked_for_in_thinking(byte_level: PreTrainedTokenizerFast) -> None:
    calls = "{{- '<think>\\n\\n</think>\\n\\n' -}}" + CALLS["a tag for each argument"]
    model = Model(byte_level, calls)
    assert model.encoder.openings().texts == ("<function=", "<tool_call>")
    other = Model(byte_level, CALLS["a tag for each argument"])
    written = other.written(FIRST)
    found = model.read(f"<think>{other.written(SECOND)}</think>\n\nthe cat.{written}")
    assert (plain(found), found and found.content) == (told(FIRST), "the cat.")
    assert model.read(f"<think>{written}") is None


@pytest.mark.parametrize(
    ("body", "mark", "text"),
    [
        ("", "<|tool_call|>", '<|tool_call|>[{"name": "weather", "arguments": {}}]'),
        ("", "<|tool_call_start|>", "<|tool_call_start|>[weather()]<|tool_call_end|>"),
        ("{{- raise_exception('no') -}}", "<tool_call>", '<tool_call>{"name": "weather"}'),
    ],
)
def test_a_template_that_writes_no_call_may_have_a_form_that_is_known(
    byte_level: PreTrainedTokenizerFast, body: str, mark: str, text: str
) -> None:
    model = Model(byte_level, f"{{# as {mark} #}}{body}")
    assert plain(model.read(text)) == told(EMPTY)
    assert model.encoder.openings() == ((mark,), "")
    # A history has them in the content.
    calls = (FIRST, SECOND, EMPTY)
    assert plain(model.read(model.written(*calls))) == told(*calls)


@pytest.mark.parametrize("body", ["", "{{- raise_exception('the cat') -}}", "{{- m.nothing.x -}}"])
def test_a_template_that_tells_of_no_form_leaves_calls_as_text_and_says_so_once(
    byte_level: PreTrainedTokenizerFast, body: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = Model(byte_level, body)
    with caplog.at_level(logging.WARNING):
        assert CallReader(Here(model.encoder), "model").openings() == ()
    (line,) = caplog.messages
    assert line.startswith("model: tool calls stay text, except in replies that begin with one")
    assert model.encoder.encode([QUESTION], None, {"tools": list(TOOLS)})
    assert model.read("<tool_call>{}") is None
