"""Begun: the text of a reply that was cut off, as its model had written it."""

from __future__ import annotations

from engine.api.client import ChatMessage
from engine.text.channels import Channels
from engine.text.thinking import Tags


def begun_text(
    reply: ChatMessage, tags: Tags | None, channels: Channels | None, *, is_open: bool
) -> str:
    """What stands behind the prompt where a reply breaks off: its thinking and its content, with
    the markup that models write around these.

    The white space around the markup is lost in a message, and is what models mostly write.

    Args:
        is_open: whether the prompt ends with the tag that opens the thinking.
    """
    thinking, content = reply.thinking, reply.content
    if channels is not None:
        texts = {"analysis": thinking, "final": content}
        said = [f"<|channel|>{name}<|message|>{text}" for name, text in texts.items() if text]
        return "<|end|><|start|>assistant".join(said)
    if tags is None or not (thinking or is_open):
        return content
    text = thinking if is_open else f"{tags.open}\n{thinking}"
    return f"{text}\n{tags.close}\n\n{content}" if content else text
