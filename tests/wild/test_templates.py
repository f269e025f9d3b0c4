"""Templates that check what they are given serve each history that they take."""

from __future__ import annotations

import copy
from typing import NamedTuple

import pytest
from transformers import PreTrainedTokenizerFast

from engine.api.client import ChatMessage
from engine.api.tools import ToolCall
from engine.text.encoder import ChatEncoder

REFUSE = "{{ raise_exception('it is refused') }}"
BODY = """\
{%- for m in messages -%}
CHECK
{{- '<|im_start|>' + m.role + '\\n' + m.content -}}
{%- for call in m.tool_calls or [] -%}
{{- call.id + ' ' + call.function.name + ' ' + call.function.arguments | tojson -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{{- '<|im_start|>assistant\\n' -}}"""


class Case(NamedTuple):
    report: str
    check: str  # a condition of the template under which it refuses


CASES = {
    "ids of nine letters": Case(
        "ml-explore/mlx-lm#1375",
        "m.tool_call_id and m.tool_call_id | length != 9 "
        "or m.tool_calls and m.tool_calls[0].id | length != 9",
    ),
    "ids without underscores": Case(
        "vllm-project/vllm#9019",
        "m.tool_call_id and ('_' in m.tool_call_id or m.tool_call_id | length != 9)",
    ),
    "ids that are each other's": Case(
        "",
        "m.role == 'tool' and m.tool_call_id != messages[loop.index0 - 1].tool_calls[0].id",
    ),
    "names of tools": Case("", "m.role == 'tool' and m.name not in ('weather', 'time')"),
    "one word of an argument": Case(
        "", "m.tool_calls and m.tool_calls[0].function.arguments.unit not in ('C', 'F')"
    ),
    "a number in an argument": Case(
        "", "m.tool_calls and m.tool_calls[0].function.arguments.days is not number"
    ),
    "arguments of a length": Case(
        "", "m.tool_calls and m.tool_calls[0].function.arguments.city | length < 3"
    ),
    "how long a text is": Case("", "m.role == 'user' and m.content | length < 5"),
    "how a text begins": Case("", "m.role == 'user' and not m.content.startswith('How')"),
    "roles in turn": Case("", "loop.index0 % 2 == 0 and m.role == 'assistant'"),
}


@pytest.mark.parametrize("call_id", ["call_1f0c", "toolu_01A09q90qw90lq917835lq9", "abcdefgh1", ""])
@pytest.mark.parametrize("case", CASES)
def test_a_history_of_tools_is_served(
    byte_level: PreTrainedTokenizerFast, case: str, call_id: str
) -> None:
    tokenizer = copy.deepcopy(byte_level)
    check = f"{{%- if {CASES[case].check} -%}}{REFUSE}{{%- endif -%}}"
    tokenizer.chat_template = BODY.replace("CHECK", check)
    given = '{"city": "Oslo", "unit": "C", "days": 2}'
    messages = [
        ChatMessage("user", "How is it <s>?"),
        ChatMessage("assistant", "", tool_calls=(ToolCall("weather", given, call_id or None),)),
        ChatMessage("tool", "Rain</s>", tool_call_id=call_id, name="weather"),
        ChatMessage("assistant", "Wet."),
        ChatMessage("user", "How is it now?"),
    ]
    text = tokenizer.decode(ChatEncoder(tokenizer, "key").encode(messages, None))
    assert 'weather {"city": "Oslo", "unit": "C", "days": 2}' in text
    assert text.count("<|im_end|>") == len(messages)
    assert not {"<s>", "</s>"} & set(text.split())


CALLS = """\
{%- for call in m.tool_calls or [] -%}
{{- '<tool_call>' + {'name': call.function.name, 'arguments': call.function.arguments} | tojson -}}
{{- '</tool_call>' -}}
{%- endfor -%}"""
TURNS = """\
{%- for m in messages -%}
{{- '<|im_start|>' + m.role + '\\n' -}}BODY{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{{- '<|im_start|>assistant\\n' -}}"""
EITHER = "{%- if CONDITION -%}" + CALLS + "{%- else -%}{{- m.content -}}{%- endif -%}"
NO_TEXT = "{%- if m.tool_calls and m.content is not none -%}" + REFUSE + "{%- endif -%}"
# Templates that write calls or content.
ALONE = {
    "content is none": (
        "vllm-project/vllm#13125",
        EITHER.replace("CONDITION", "m.content is none"),
    ),
    "no content": ("", EITHER.replace("CONDITION", "not m.content")),
    "content must be none": ("", NO_TEXT + CALLS + "{{- m.content or '' -}}"),
}


@pytest.mark.parametrize("in_turn", [False, True])
@pytest.mark.parametrize("said", ["", "Let me see."])
@pytest.mark.parametrize("case", ALONE)
def test_a_call_is_kept_beside_what_is_said(
    byte_level: PreTrainedTokenizerFast, case: str, said: str, in_turn: bool
) -> None:
    tokenizer = copy.deepcopy(byte_level)
    body = ALONE[case][1]
    if in_turn:
        twice = "not loop.first and m.role == 'assistant' == messages[loop.index0 - 1].role"
        body = f"{{%- if {twice} -%}}{REFUSE}{{%- endif -%}}{body}"
    tokenizer.chat_template = TURNS.replace("BODY", body)
    call = ToolCall("weather", '{"city": "Oslo"}', "call_1")
    messages = [
        ChatMessage("user", "How is it?"),
        ChatMessage("assistant", said, tool_calls=(call,)),
        ChatMessage("tool", "Rain", tool_call_id="call_1", name="weather"),
        ChatMessage("assistant", "Wet."),
        ChatMessage("user", "How is it now?"),
    ]
    text = tokenizer.decode(ChatEncoder(tokenizer, "key").encode(messages, None))
    assert text.count('{"name": "weather", "arguments": {"city": "Oslo"}}') == 1
    assert "Rain" in text
    assert "Wet." in text
    assert said in text or in_turn
