from __future__ import annotations

from typing import Any

import pytest

from engine.api.errors import InvalidRequestError
from engine.api.sampling import SamplingParams
from engine.api.tools import MAX_TOOLS, MAX_TOOLS_BYTES, ToolCall


def tool(**changes: object) -> dict[str, object]:
    """A function; None takes a field away."""
    function = {"name": "weather", "description": "x", "parameters": {"type": "object"}} | changes
    return {"type": "function", "function": {k: v for k, v in function.items() if v is not None}}


def test_tools_reach_the_template_beside_its_other_arguments() -> None:
    tools = [tool(), tool(name="clock", description=None, parameters=None, strict=True)]
    params = SamplingParams().override({"tools": tools})
    assert params.template_arguments == {"tools": tools}
    params = params.override({"chat_template_kwargs": {"enable_thinking": False}})
    assert params.template_arguments == {"enable_thinking": False, "tools": tools}
    assert params.override({"tools": []}).template_arguments == {"enable_thinking": False}


@pytest.mark.parametrize(
    ("tools", "sentence"),
    [
        ("weather", r"^tools is 'weather'; it must be a list of functions$"),
        (7, r"^tools is 7; it must be a list"),
        ([7], r"^tools\[0\] is 7; it must be an object with type and function$"),
        ([{"type": "x"}], r"^tools\[0\].type is 'x'; it must be function$"),
        ([{"type": "function"}], r"^tools\[0\].function is None; it must be an object with name"),
        (
            [tool(), tool(name="")],
            r"^tools\[1\].function.name is ''; it must be a text of 1 to",
        ),
        ([tool(name="x" * 257)], r"^tools\[0\].function.name is 'xxx"),
        ([tool(description=1)], r"^tools\[0\].function.description is 1; it must be text$"),
        ([tool(parameters=[])], r"^tools\[0\].function.parameters is \[\]; it must be an object"),
        ([tool(extra=object())], r"^tools must have values as JSON has them$"),
        ([tool(extra=float("nan"))], r"^tools must have values as JSON has them$"),
        ([tool(extra="\ud800")], r"^tools must have values as JSON has them$"),
        ([tool()] * (MAX_TOOLS + 1), r"^tools has 129 entries; at most 128 are allowed$"),
        ([tool(extra="é" * (MAX_TOOLS_BYTES // 2))], r"at most 262144 are allowed$"),
    ],
)
def test_what_are_no_functions_is_refused(tools: Any, sentence: str) -> None:
    with pytest.raises(InvalidRequestError, match=sentence) as caught:
        SamplingParams().override({"tools": tools})
    assert caught.value.param == "tools"


def test_a_call_in_the_form_of_openai() -> None:
    assert ToolCall("f", '{"a": 1}', "c1").in_openai_form() == {
        "id": "c1",
        "type": "function",
        "function": {"name": "f", "arguments": '{"a": 1}'},
    }
