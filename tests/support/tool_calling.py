"""A tokenizer whose template takes tools, and states what their calls look like in a reply."""

from __future__ import annotations

import copy
from typing import Any

from transformers import PreTrainedTokenizerFast

# As Qwen3: calls stand within tags, outcomes within others, in a message of the user's.
TEMPLATE = """\
{%- if tools -%}
{{- '<|im_start|>system\\n' -}}
{%- for tool in tools -%}{{- tool | tojson + '\\n' -}}{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- for m in messages -%}
{%- if m.role == 'tool' -%}
{{- '<|im_start|>user\\n<tool_response>\\n' + m.content + '\\n</tool_response><|im_end|>\\n' -}}
{%- else -%}
{{- '<|im_start|>' + m.role + '\\n' + m.content -}}
{%- for call in m.tool_calls or [] -%}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' -}}
{{- call.function.arguments | tojson + '}\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"""

RESPONSE: dict[str, Any] = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "thinking": {"open": "<think>", "close": "</think>", "content": "text"},
        "tool_calls": {
            "open_pattern": r"\s*<tool_call>",
            "close": "</tool_call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"\s*<\|im_end\|>", "content": "text"},
    },
}

TOOLS: tuple[dict[str, object], ...] = (
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "How the weather is.",
            "parameters": {"type": "object", "properties": {"days": {"type": "integer"}}},
        },
    },
)


def tool_calling(
    tokenizer: PreTrainedTokenizerFast,
    response: object = RESPONSE,
    template: str = TEMPLATE,
) -> PreTrainedTokenizerFast:
    """A copy of a tokenizer with this template, and this response template."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = template
    tokenizer.response_template = response
    return tokenizer


def call(name: str, arguments: str) -> str:
    """A call as such a model writes it."""
    return f'\n<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
