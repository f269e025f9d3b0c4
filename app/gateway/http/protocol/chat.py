"""ChatCompletionRequest: a request to /v1/chat/completions."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from app.gateway.http.protocol.generating import Generating, refuse
from app.gateway.http.protocol.payload import Wanted
from app.gateway.http.protocol.tool_choice import ALLOWED, ANY, ChosenTool, ForcedCalls
from app.gateway.http.protocol.turns import (
    TURNS_ALLOWED,
    Turns,
    as_tool,
    chat,
    check_prompting,
)
from app.gateway.logprobs import stated_logprobs
from app.gateway.stated import (
    Arguments,
    MaxTokens,
    Name,
    Tools,
    TopLogprobs,
    range_of,
    sampled,
    sampling_allowed,
)
from engine.api.client import ChatMessage
from engine.api.sampling_spec import Interface

_MOST = range_of("max_tokens")


@sampled("chat")
class ChatCompletionRequest(Generating):
    """A request for the next message of a chat.

    Attributes:
        max_completion_tokens: most tokens of a reply, thinking included; overrides `max_tokens`,
            its older name.
        logprobs: whether each token comes with its log-probability.
        top_logprobs: how many of the likeliest tokens come with each.
        tool_choice: `none` omits the tools, `auto` leaves it to the model, `required` makes it call
            at least one, and a function makes it call that one.
        parallel_tool_calls: whether a reply may call several.
        reasoning_effort: passed to the chat template.
        chat_template_kwargs: arguments of the chat template by name.
        include_reasoning: whether the reply includes the thinking.
        add_generation_prompt, continue_final_message: as in vLLM: if the latter is true, the last
            message is a reply to continue.
        echo: whether that message precedes its continuation in the reply.
    """

    interface: ClassVar[Interface] = "chat"
    ALLOWED: ClassVar[dict[str, str]] = {
        **Generating.ALLOWED,
        **sampling_allowed("chat"),
        **TURNS_ALLOWED,
        "max_completion_tokens": str(_MOST),
        "logprobs": "true or false",
        "tools.*": "an object with type and function",
        "tool_choice": ALLOWED,
        "parallel_tool_calls": "true or false",
        "reasoning_effort": "text",
        "include_reasoning": "true or false",
        "add_generation_prompt": "true or false",
        "continue_final_message": "true or false",
        "echo": "true or false",
    }

    messages: Turns
    max_completion_tokens: MaxTokens | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    tools: Tools | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Name | None = None
    chat_template_kwargs: Arguments | None = None
    include_reasoning: bool = True
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    echo: bool | None = None

    @property
    def calls_one(self) -> bool:
        """Whether a reply may call no more than one function."""
        return self.parallel_tool_calls is False

    def chat(self) -> tuple[ChatMessage, ...]:
        """The chat in the engine's form.

        Raises:
            InvalidRequestError: it cannot be answered.
        """
        check_prompting(self.add_generation_prompt, self.continue_final_message)
        if self.continue_final_message and (forced := self.forced_calls()) is not None:
            raise forced.wrong("where continue_final_message is true")
        return chat(self.messages, goes_on=bool(self.continue_final_message))

    def more_sampling(self) -> dict[str, Any]:
        """
        Raises:
            InvalidRequestError: fields contradict each other.
        """
        arguments = dict(self.chat_template_kwargs or {})
        if self.reasoning_effort is not None:
            arguments.setdefault("reasoning_effort", self.reasoning_effort)
        tools = [as_tool(tool) for tool in self.tools] if self.tools else None
        most = self.max_completion_tokens
        if most is not None and most not in _MOST:
            raise refuse("max_completion_tokens", most, str(_MOST))
        return {
            "max_tokens": self.max_tokens if most is None else most,
            "logprobs": stated_logprobs(self.logprobs, self.top_logprobs),
            # An empty list removes the tools of the settings, too.
            "tools": [] if self.tool_choice == "none" else tools,
            "chat_template_kwargs": arguments or None,
        }

    def own_name(self, param: str) -> str:
        is_newer = param == "max_tokens" and self.max_completion_tokens is not None
        return "max_completion_tokens" if is_newer else param

    def wanted(self) -> Wanted | None:
        """
        Raises:
            InvalidRequestError: the request forces calls and also states another structure.
        """
        stated, forced = super().wanted(), self.forced_calls()
        return stated if forced is None else forced.wanted(stated)

    def forced_calls(self) -> ForcedCalls | None:
        """The calls that the reply has to make; None if it need not.

        Raises:
            InvalidRequestError: there is no such function.
        """
        choice = self.tool_choice
        name = choice.function.name if isinstance(choice, ChosenTool) else None
        if name is None and choice != ANY:
            return None
        said = "tool_choice", name or ANY
        return ForcedCalls(self.tools or (), name, calls_one=self.calls_one, said=said)
