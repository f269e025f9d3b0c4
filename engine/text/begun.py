"""Begun: the text of a partial reply, as its model wrote it."""

from __future__ import annotations

from engine.api.client import ChatMessage
from engine.text.channels import Channels
from engine.text.thinking import Tags


def begun_text(
    reply: ChatMessage, tags: Tags | None, channels: Channels | None, *, is_open: bool
) -> str:
    """The text of a partial reply behind the prompt: thinking and content, with the markup that
    models write around them.

    A message no longer has the white space around the markup, so the usual white space is written.

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
