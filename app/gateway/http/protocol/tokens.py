"""TokenizeRequest and DetokenizeRequest: requests to the tokenizer, in vLLM's form."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from app.gateway.http.protocol.generating import refuse
from app.gateway.http.protocol.payload import Payload
from app.gateway.http.protocol.turns import (
    TURNS_ALLOWED,
    Turns,
    as_tool,
    chat,
    check_prompting,
)
from app.gateway.stated import MAX_PROMPT_TOKENS, Arguments, LongText, Model, TokenId, Tools
from engine.api.client import ChatMessage
from engine.api.errors import InvalidRequestError
from engine.api.sampling import MAX_ARGUMENT_BYTES
from engine.api.tools import MAX_TOOLS


class TokenizeRequest(Payload):
    """A request for the token ids of a text, or of a chat rendered by the template.

    Attributes:
        add_special_tokens: whether a text gets the tokenizer's initial tokens; by default it does.
            A chat begins as its template states.
        add_generation_prompt, continue_final_message: as in `ChatCompletionRequest`.
        return_token_strs: whether to return the text of each token, too.
    """

    ALLOWED: ClassVar[dict[str, str]] = {
        **TURNS_ALLOWED,
        "model": "text, the name of the model",
        "prompt": "text",
        "tools": f"a list of at most {MAX_TOOLS} functions",
        "tools.*": "an object with type and function",
        "chat_template_kwargs": f"a map of names to values, {MAX_ARGUMENT_BYTES >> 10} KiB as JSON",
        "add_special_tokens": "true or false",
        "add_generation_prompt": "true or false",
        "continue_final_message": "true or false",
        "return_token_strs": "true or false",
    }

    model: Model | None = None
    prompt: LongText | None = None
    messages: Turns | None = None
    tools: Tools | None = None
    chat_template_kwargs: Arguments | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    return_token_strs: bool | None = None

    def text(self) -> str | tuple[ChatMessage, ...]:
        """The text to tokenize, in the engine's form.

        Raises:
            InvalidRequestError: there is none, or more than one.
        """
        if self.prompt is not None:
            for name in ("messages", "tools", "chat_template_kwargs"):
                if (value := getattr(self, name)) is not None:
                    raise refuse(name, value, "left out where prompt is stated")
            return self.prompt
        if self.messages is None:
            text = "messages is missing; a list of messages must be stated, or prompt as text"
            raise InvalidRequestError(text, "messages")
        if self.add_special_tokens:
            raise refuse("add_special_tokens", True, "false or left out where messages are stated")
        check_prompting(self.add_generation_prompt, self.continue_final_message)
        return chat(self.messages, goes_on=bool(self.continue_final_message))

    def sampling(self) -> dict[str, Any]:
        """The stated arguments of the chat template, by the engine's names."""
        tools = [as_tool(tool) for tool in self.tools or ()]
        stated = {"tools": tools or None, "chat_template_kwargs": self.chat_template_kwargs}
        return {name: value for name, value in stated.items() if value is not None}


class DetokenizeRequest(Payload):
    """A request for the text of token ids."""

    ALLOWED: ClassVar[dict[str, str]] = {
        "model": "text, the name of the model",
        "tokens": "a list of token ids",
    }

    model: Model | None = None
    tokens: Annotated[tuple[TokenId, ...], Field(max_length=MAX_PROMPT_TOKENS, fail_fast=True)]
