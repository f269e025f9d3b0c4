"""Templates that write calls of tools in the forms that models have, each as short as it goes."""

from __future__ import annotations

# Before and behind the calls of a message; `c` is the function of one call, and `call` the call.
_HEAD = """\
{%- if tools -%}{{- '<|im_start|>system\\n' + tools | tojson + '<|im_end|>\\n' -}}{%- endif -%}
{%- for m in messages -%}
{{- '<|im_start|>' + m.role + '\\n' + m.content -}}
{%- if m.tool_calls -%}"""
_TAIL = """\
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"""
_EACH = "{%- for call in m.tool_calls -%}{%- set c = call.function -%}"
_END = "{%- endfor -%}"
_VALUE = "{{- v if v is string else v | tojson -}}"
_NINE = (
    "{%- if call.id | length != 9 or '_' in call.id -%}"
    "{{- raise_exception('ids have nine letters or digits') -}}{%- endif -%}"
)
_COMMA = "{%- if not loop.last -%}{{- ', ' -}}{%- endif -%}"
_PAIRS = "{%- for k, v in c.arguments.items() -%}"
_DEEPSEEK = "<\uff5ctool\u2581calls\u2581begin\uff5c>", "<\uff5ctool\u2581calls\u2581end\uff5c>"


def _each(body: str) -> str:
    return _EACH + body + _END


def _json(name: str = "name", arguments: str = "arguments", extra: str = "") -> str:
    return (
        f'{{{{- \'{{"{name}": "\' + c.name + \'", "{arguments}": \' + c.arguments | tojson -}}}}'
        f"{extra}{{{{- '}}' -}}}}"
    )


CALLS = {
    "hermes": _each(f"{{{{- '\\n<tool_call>\\n' -}}}}{_json()}{{{{- '\\n</tool_call>' -}}}}"),
    "a list in tags": (
        "{{- '<tool_calls>[' -}}"
        + _each(_json(extra="{{- ', \"id\": \"' + call.id + '\"' -}}") + _COMMA)
        + "{{- ']</tool_calls>' -}}"
    ),
    "a list of actions": (
        "{{- '<|START_ACTION|>[\\n' -}}"
        + _each(_json("tool_name", "parameters") + "{{- ',\\n' if not loop.last else '\\n' -}}")
        + "{{- ']<|END_ACTION|>' -}}"
    ),
    "arguments as text": _each(
        "{{- '<call>' + {'name': c.name, 'arguments': c.arguments | tojson} | tojson "
        "+ '</call>' -}}"
    ),
    "the name is a key": (
        "{{- '<|tools|>[' -}}"
        + _each("{{- '{' + c.name | tojson + ': ' + c.arguments | tojson + '}' -}}" + _COMMA)
        + "{{- ']<|/tools|>' -}}"
    ),
    "a list with ids of nine": (
        "{{- '[TOOL_CALLS][' -}}"
        + _each(_NINE + _json(extra="{{- ', \"id\": \"' + call.id + '\"' -}}") + _COMMA)
        + "{{- ']' -}}"
    ),
    "a header with an id": _each(
        _NINE
        + "{{- '[TOOL_CALLS]' + c.name + '[CALL_ID]' + call.id + '[ARGS]' "
        + "+ c.arguments | tojson -}}"
    ),
    "a section, and arguments that are text": (
        f"{{{{- '{_DEEPSEEK[0]}' -}}}}"
        + _each(
            "{{- '<\uff5ctool\u2581call\u2581begin\uff5c>function<\uff5ctool\u2581sep\uff5c>' "
            "+ c.name + '\\n```json\\n' + c.arguments "
            "+ '\\n```<\uff5ctool\u2581call\u2581end\uff5c>' -}}"
        )
        + f"{{{{- '{_DEEPSEEK[1]}' -}}}}"
    ),
    "a number behind the name": (
        "{{- '<|tool_calls_section_begin|>' -}}"
        + _each(
            "{{- '<|tool_call_begin|>functions.' + c.name + ':' + loop.index0 | string "
            "+ '<|tool_call_argument_begin|>' + c.arguments | tojson + '<|tool_call_end|>' -}}"
        )
        + "{{- '<|tool_calls_section_end|>' -}}"
    ),
    "the id has the name": (
        "{{- '<|tool_calls_section_begin|>' -}}"
        + _each(
            "{{- '<|tool_call_begin|>' + call.id + '<|tool_call_argument_begin|>' "
            "+ c.arguments | tojson + '<|tool_call_end|>' -}}"
        )
        + "{{- '<|tool_calls_section_end|>' -}}"
    ),
    "a tag with the name": _each(
        "{{- '<function=' + c.name + '>' + c.arguments | tojson + '</function>' -}}"
    ),
    "a tag for each argument": _each(
        "{{- '\\n<tool_call>\\n<function=' + c.name + '>\\n' -}}"
        + _PAIRS
        + "{{- '<parameter=' + k + '>\\n' -}}"
        + _VALUE
        + "{{- '\\n</parameter>\\n' -}}"
        + _END
        + "{{- '</function>\\n</tool_call>' -}}"
    ),
    "a section with a tag for each argument": (
        "{{- '<mini:tool_call>\\n' -}}"
        + _each(
            "{{- '<invoke name=\"' + c.name + '\">\\n' -}}"
            + _PAIRS
            + "{{- '<parameter name=\"' + k + '\">' -}}"
            + _VALUE
            + "{{- '</parameter>\\n' -}}"
            + _END
            + "{{- '</invoke>\\n' -}}"
        )
        + "{{- '</mini:tool_call>' -}}"
    ),
    "a tag that says which values are text": (
        "{{- '<\uff5cDSML\uff5ccalls>\\n' -}}"
        + _each(
            "{{- '<\uff5cDSML\uff5cinvoke name=\"' + c.name + '\">\\n' -}}"
            + _PAIRS
            + "{{- '<\uff5cDSML\uff5cparameter name=\"' + k + '\" string=\"' -}}"
            + "{{- ('true' if v is string else 'false') + '\">' -}}"
            + _VALUE
            + "{{- '</\uff5cDSML\uff5cparameter>\\n' -}}"
            + _END
            + "{{- '</\uff5cDSML\uff5cinvoke>\\n' -}}"
        )
        + "{{- '</\uff5cDSML\uff5ccalls>' -}}"
    ),
    "tags for keys and for values": _each(
        "{{- '\\n<tool_call>' + c.name -}}"
        + _PAIRS
        + "{{- '\\n<arg_key>' + k + '</arg_key>\\n<arg_value>' -}}"
        + _VALUE
        + "{{- '</arg_value>' -}}"
        + _END
        + "{{- '\\n</tool_call>' -}}"
    ),
    "python in tags": (
        "{{- '<|tool_call_start|>[' -}}"
        + _each(
            "{{- c.name + '(' -}}"
            + _PAIRS
            + "{{- k + '=' + v | tojson -}}"
            + _COMMA
            + _END
            + "{{- ')' -}}"
            + _COMMA
        )
        + "{{- ']<|tool_call_end|>' -}}"
    ),
    "an object without marks": _each(
        "{{- '<|tool_call>call:' + c.name + '{' -}}"
        + _PAIRS
        + "{{- k + ':' -}}{{- ('<|\"|>' + v + '<|\"|>') if v is string else v | tojson -}}"
        + "{%- if not loop.last -%}{{- ',' -}}{%- endif -%}"
        + _END
        + "{{- '}<tool_call|>' -}}"
    ),
}
# Calls that begin with no tag, and so are calls at the beginning of a reply alone.
BARE = {
    "python": (
        "{{- '[' -}}"
        + _each(
            "{{- c.name + '(' -}}" + _PAIRS + "{{- k + '=' + v | tojson -}}" + _COMMA + _END
            + "{{- ')' -}}" + _COMMA
        )
        + "{{- ']' -}}"
    ),
    "json, one call": (
        "{%- if m.tool_calls | length > 1 -%}{{- raise_exception('one call') -}}{%- endif -%}"
        + _each(_json("name", "parameters"))
    ),
    "json, a list": "{{- '[' -}}" + _each(_json() + _COMMA) + "{{- ']' -}}",
}  # fmt: skip


def template(calls: str) -> str:
    """A chat template that takes tools, and writes calls like this."""
    return _HEAD + calls + _TAIL
