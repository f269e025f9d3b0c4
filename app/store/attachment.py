"""Attachment: a text that goes along with a message, under a name."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FENCE = re.compile(r"^`{3,}", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Attachment:
    """A text file, or a text that was pasted.

    Attributes:
        name: of the file, without its folder, or as a paste is called.
    """

    name: str
    text: str

    @property
    def told(self) -> str:
        """The attachment as the model is told it: its name, and the text in a fence of backticks
        that is longer than any in the text."""
        longest = max((len(found) for found in _FENCE.findall(self.text)), default=2)
        fence = "`" * (longest + 1)
        end = "" if self.text.endswith("\n") else "\n"
        return f"{self.name}:\n{fence}\n{self.text}{end}{fence}"


def told_with(content: str, attachments: tuple[Attachment, ...]) -> str:
    """What the model is told of a message: its attachments, and then what it says."""
    return "\n\n".join((*(attachment.told for attachment in attachments), content)).strip("\n")
