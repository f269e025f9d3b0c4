"""ResponsesRequest: a request to /v1/responses."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from app.gateway.http.protocol.generating import refuse
from app.gateway.http.protocol.items import ITEMS_ALLOWED, Items, messages_of
from app.gateway.http.protocol.payload import PAIR_ALLOWED, PAIRS_ALLOWED, Pairs, Payload, Wanted
from app.gateway.http.protocol.structured import SchemaFormat, format_allowed
from app.gateway.http.protocol.tool_choice import ALLOWED, ANY, ForcedCalls
from app.gateway.http.protocol.turns import asking
from app.gateway.stated import (
    LongText,
    MaxTokens,
    Model,
    Name,
    Parameters,
    Temperature,
    TopP,
    check_sampling,
    sampled,
    sampling_allowed,
    stated_sampling,
)
from engine.api.client import ChatMessage
from engine.api.errors import InvalidRequestError
from engine.api.tools import MAX_TOOLS
from engine.core.admission import MAX_CACHE_SALT


class Function(Payload):
    """A function that the client runs. Tools of OpenAI's servers have other types."""

    type: Literal["function"]
    name: Name
    description: LongText | None = None
    parameters: Parameters | None = None
    strict: bool | None = None

    def in_openai_form(self) -> dict[str, Any]:
        """The function in the form that chat templates expect."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        if self.parameters is not None:
            function["parameters"] = self.parameters
        return {"type": "function", "function": function}


class NamedFunction(Payload):
    """A function by its name."""

    type: Literal["function"]
    name: Name


class Text(Payload):
    """The wanted form of the text."""

    format: SchemaFormat | None = None


class Reasoning(Payload):
    """How much the model should think; the effort is passed to the chat template."""

    effort: Name | None = None


@sampled("responses")
class ResponsesRequest(Payload):
    """A request for the response to a conversation.

    Attributes:
        instructions: precede all else, and are not kept for the next response.
        previous_response_id: a response to the same user, whose conversation the input continues.
        store: whether this response may be continued, and fetched again.
        cache_salt: as in vLLM: only requests with the same salt find its prefix in the cache.
        background, conversation, prompt, truncation: refused, unless they change nothing.
    """

    ALLOWED: ClassVar[dict[str, str]] = {
        **ITEMS_ALLOWED,
        "model": "text, the name of the model",
        "instructions": "text",
        **sampling_allowed("responses"),
        "tools": f"a list of at most {MAX_TOOLS} functions",
        "tools.*": "an object with type and name",
        "tools.*.type": "function",
        "tools.*.name": "text",
        "tools.*.description": "text",
        "tools.*.parameters": "an object, a JSON Schema",
        "tools.*.strict": "true or false",
        "tool_choice": ALLOWED,
        "parallel_tool_calls": "true or false",
        "reasoning": "an object with effort",
        "reasoning.effort": "text",
        "text": "an object with format",
        **format_allowed("text.format"),
        "previous_response_id": "text, the id of a response",
        "store": "true or false",
        "stream": "true or false",
        "metadata": PAIRS_ALLOWED,
        "metadata.*": PAIR_ALLOWED,
        "truncation": "disabled, or left out",
        "cache_salt": f"text of 1 to {MAX_CACHE_SALT} characters",
        "background": "true or false",
    }

    model: Model | None = None
    input: LongText | Items
    instructions: LongText | None = None
    max_output_tokens: MaxTokens | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    tools: Annotated[tuple[Function, ...], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = (
        None
    )
    tool_choice: Literal["none", "auto", "required"] | NamedFunction | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: Text | None = None
    previous_response_id: Name | None = None
    store: bool | None = None
    stream: bool | None = None
    metadata: Pairs | None = None
    truncation: Literal["disabled"] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_CACHE_SALT)] | None = None
    background: bool | None = None
    conversation: Any = None
    prompt: Any = None

    @property
    def is_stored(self) -> bool:
        return self.store is not False

    @property
    def calls_one(self) -> bool:
        """Whether a response may call no more than one function."""
        return self.parallel_tool_calls is False

    @property
    def _functions(self) -> list[dict[str, Any]]:
        return [tool.in_openai_form() for tool in self.tools or ()]

    def forced_calls(self) -> ForcedCalls | None:
        """The calls that the response has to make; None if it need not.

        Raises:
            InvalidRequestError: there is no such function.
        """
        choice = self.tool_choice
        name = choice.name if isinstance(choice, NamedFunction) else None
        if name is None and choice != ANY:
            return None
        said = "tool_choice", name or ANY
        functions = [
            {"function": {**tool.in_openai_form()["function"], "strict": tool.strict}}
            for tool in self.tools or ()
        ]
        return ForcedCalls(
            *(functions, name),
            calls_one=self.calls_one,
            said=said,
            place="tools[{}].parameters",
        )

    def own_name(self, param: str) -> str:
        return "max_output_tokens" if param == "max_tokens" else param

    def wanted(self) -> Wanted | None:
        """The form of the response; None if it need not have any.

        Raises:
            InvalidRequestError: its schema is missing, or the request also forces calls.
        """
        payload, forced = None if self.text is None else self.text.format, self.forced_calls()
        stated = None if payload is None else payload.wanted_at("text.format")
        return stated if forced is None else forced.wanted(stated)

    def messages(self) -> list[ChatMessage]:
        """The input in the engine's form.

        Raises:
            InvalidRequestError: it cannot be answered.
        """
        if isinstance(self.input, str):
            return [ChatMessage("user", self.input)]
        messages = messages_of(self.input)
        if messages[asking([message.role for message in messages])].role not in ("user", "tool"):
            at = asking([item.role for item in self.input])
            path = f"input[{at}]"
            what = self.input[at].role or self.input[at].type
            text = (
                "the last item must be the user's or a function's result, apart from system"
                " messages"
            )
            raise InvalidRequestError(f"{path} is {what!r}; {text}", path)
        return messages

    def sampling(self) -> dict[str, Any]:
        """The stated sampling parameters, by the engine's names.

        Raises:
            InvalidRequestError: one is outside its range, or a field is not served.
        """
        for name in ("background", "conversation", "prompt"):
            if value := getattr(self, name):
                raise refuse(name, value, "left out")
        stated = stated_sampling(self, "responses")
        if self.tool_choice == "none":
            stated["tools"] = []  # It removes the tools of the settings, too.
        elif self.tools:
            stated["tools"] = self._functions
        wanted = self.form
        stated["structure"] = None if wanted is None else wanted.structure
        if self.reasoning is not None and self.reasoning.effort is not None:
            stated["chat_template_kwargs"] = {"reasoning_effort": self.reasoning.effort}
        given = {name: value for name, value in stated.items() if value is not None}
        check_sampling(given, "responses")
        return given
