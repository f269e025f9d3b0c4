"""MessagesRequest: a request to /v1/messages, in Anthropic's form."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from app.gateway.http.protocol.blocks import (
    BLOCKS_ALLOWED,
    Conversation,
    Inner,
    conversation,
    found_tools,
    inner_text,
)
from app.gateway.http.protocol.payload import Payload, Wanted
from app.gateway.http.protocol.structured import SchemaFormat, format_allowed
from app.gateway.http.protocol.tool_choice import ForcedCalls
from app.gateway.stated import (
    LongText,
    Model,
    Name,
    Parameters,
    Stops,
    Whole,
    check_sampling,
    range_of,
    sampled,
    sampling_allowed,
    stated_sampling,
)
from engine.api.client import ChatMessage
from engine.api.errors import InvalidRequestError
from engine.api.sampling import MAX_STOP_BYTES, MAX_STOPS
from engine.api.tools import MAX_TOOLS
from engine.core.admission import MAX_CACHE_SALT


class Tool(Payload):
    """A tool that the client runs. Tools of Anthropic's own servers have other types.

    Attributes:
        defer_loading: whether the prompt includes it only once a result refers to it.
    """

    type: Literal["custom"] | None = None
    name: Name
    description: LongText | None = None
    input_schema: Parameters
    defer_loading: bool = False

    def in_openai_form(self) -> dict[str, Any]:
        """The tool in the form that chat templates expect."""
        function = {
            "name": self.name,
            "description": self.description or "",
            "parameters": self.input_schema,
        }
        return {"type": "function", "function": function}


class ToolChoice(Payload):
    """Whether the model may or must call tools, and how many at once.

    Attributes:
        name: of type `tool`: the tool to call.
    """

    type: Literal["auto", "none", "any", "tool"]
    name: Name | None = None
    disable_parallel_tool_use: bool = False


class Thinking(Payload):
    """Whether the model thinks before it answers.

    Attributes:
        type: `between_tools` is `disabled` for models that write no updates while they work.
        display: `omitted` leaves the thinking out of the reply.
    """

    type: Literal["enabled", "adaptive", "disabled", "between_tools"]
    display: Literal["summarized", "omitted", "updates"] | None = None


class Output(Payload):
    """The wanted form of the reply.

    Attributes:
        effort: passed to the chat template as `reasoning_effort`.
    """

    effort: Name | None = None
    format: SchemaFormat | None = None


class Metadata(Payload):
    """The client's end user; it has no effect."""

    user_id: LongText | None = None


class MessageCountRequest(Payload):
    """A chat whose tokens are to be counted.

    Attributes:
        system: text before all messages.
        thinking: passed to the chat template as `enable_thinking`. By default the template decides,
            and the reply omits the thinking: clients that request none expect none.
    """

    ALLOWED: ClassVar[dict[str, str]] = {
        **BLOCKS_ALLOWED,
        "model": "text, the name of the model",
        "system": "text or a list of blocks of type text",
        "tools": f"a list of at most {MAX_TOOLS} tools",
        "tools.*": "an object with name and input_schema",
        "tools.*.type": "custom, or left out",
        "tools.*.name": "text",
        "tools.*.description": "text",
        "tools.*.input_schema": "an object, a JSON Schema",
        "tools.*.defer_loading": "true or false",
        "tool_choice": "an object with type",
        "tool_choice.type": "one of auto, none, any, tool",
        "tool_choice.name": "text, the name of a tool",
        "tool_choice.disable_parallel_tool_use": "true or false",
        "output_config": "an object with effort and format",
        "output_config.effort": "text",
        **format_allowed("output_config.format"),
        "thinking": "an object with type",
        "thinking.type": "one of enabled, adaptive, disabled, between_tools",
        "thinking.display": "one of summarized, omitted, updates",
    }

    model: Model | None = None
    messages: Conversation
    system: LongText | Inner | None = None
    tools: Annotated[tuple[Tool, ...], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: Output | None = None

    def chat(self) -> tuple[ChatMessage, ...]:
        """The chat in the engine's form.

        Raises:
            InvalidRequestError: it cannot be answered.
        """
        messages = conversation(self.messages)
        if system := inner_text(self.system or "", "system"):
            messages.insert(0, ChatMessage("system", system))
        return tuple(messages)

    @property
    def includes_thinking(self) -> bool:
        thinking = self.thinking
        return thinking is not None and thinking.display != "omitted"

    @property
    def calls_one(self) -> bool:
        """Whether a reply may call no more than one tool."""
        return self.tool_choice is not None and self.tool_choice.disable_parallel_tool_use

    @property
    def _functions(self) -> list[dict[str, Any]]:
        tools = self.tools or ()
        found = found_tools(self.messages) if any(tool.defer_loading for tool in tools) else set()
        return [
            tool.in_openai_form() for tool in tools if not tool.defer_loading or tool.name in found
        ]

    def forced_calls(self) -> ForcedCalls | None:
        """The calls that the reply has to make; None if it need not.

        Raises:
            InvalidRequestError: there is no such tool.
        """
        choice = self.tool_choice
        if choice is None or choice.type not in ("any", "tool"):
            return None
        said, name = ("tool_choice.type", "any"), None
        if choice.type == "tool":
            if (name := choice.name) is None:
                allowed = self.ALLOWED["tool_choice.name"]
                text = f"tool_choice.name is missing; it must be {allowed}"
                raise InvalidRequestError(text, "tool_choice.name")
            said = "tool_choice.name", name
        return ForcedCalls(
            *(self._functions, name),
            calls_one=self.calls_one,
            said=said,
            place="tools[{}].input_schema",
        )

    def sampling(self) -> dict[str, Any]:
        """The stated sampling parameters, by the engine's names.

        Raises:
            InvalidRequestError: one is outside its range.
        """
        given: dict[str, Any] = {}
        if self.tool_choice is not None and self.tool_choice.type == "none":
            given["tools"] = []  # It removes the tools of the settings, too.
        elif self.tools:
            given["tools"] = self._functions
        arguments: dict[str, Any] = {}
        if self.thinking is not None:
            arguments["enable_thinking"] = self.thinking.type in ("enabled", "adaptive")
        if self.output_config is not None and self.output_config.effort is not None:
            arguments["reasoning_effort"] = self.output_config.effort
        if arguments:
            given["chat_template_kwargs"] = arguments
        return given


_MOST = range_of("max_tokens")


@sampled("messages")
class MessagesRequest(MessageCountRequest):
    """A request for the next message of a chat.

    Attributes:
        max_tokens: most tokens of the reply, thinking included, as far as the context allows.
        cache_salt: as in vLLM: only requests with the same salt find its prefix in the cache.
    """

    ALLOWED: ClassVar[dict[str, str]] = {
        **MessageCountRequest.ALLOWED,
        **sampling_allowed("messages"),
        "stop_sequences": f"a list of at most {MAX_STOPS} texts, none of them empty, "
        f"{MAX_STOP_BYTES >> 10} KiB in all",
        "stream": "true or false",
        "cache_salt": f"text of 1 to {MAX_CACHE_SALT} characters",
        "metadata": "an object with user_id",
        "metadata.user_id": "text",
    }

    max_tokens: Annotated[int, Field(ge=_MOST.low, le=_MOST.high), Whole]
    stop_sequences: Stops | None = None
    stream: bool | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_CACHE_SALT)] | None = None
    metadata: Metadata | None = None

    def wanted(self) -> Wanted | None:
        """The form of the reply; None if it need not have any.

        Raises:
            InvalidRequestError: its schema is missing, or the request also forces calls of tools.
        """
        output, forced = self.output_config, self.forced_calls()
        payload = None if output is None else output.format
        stated = None if payload is None else payload.wanted_at("output_config.format")
        if forced is None:
            return stated
        if self.messages[-1].role == "assistant":
            raise forced.wrong("where the last message is the assistant's")
        return forced.wanted(stated)

    def sampling(self) -> dict[str, Any]:
        given = super().sampling() | stated_sampling(self, "messages")
        if (wanted := self.form) is not None:
            given["structure"] = wanted.structure
        check_sampling(given, "messages")
        return given
