"""CallReader: reads the tool calls of replies, and warns once if that is not possible."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from engine.api.errors import EngineError
from engine.api.tools import ToolUse
from engine.text.job import Encoder, OpeningsJob, ReplyJob, UnreadableError
from engine.text.pool import ClosedError

log = logging.getLogger(__name__)

# The prompt ends with the reply's header, which is some ten tokens, or some hundred if the template
# begins the reply with text of its own.
_PROMPT_END = 1024


class CallReader:
    """Reads the tool calls of one model's replies. Any thread may call it.

    An unreadable reply stays text. After one that takes too much time or memory, or ends the
    process, no others are read, because prompts need these processes.
    """

    def __init__(self, encoder: Encoder, model_key: str) -> None:
        self._encoder = encoder
        self._model_key = model_key
        self._has_told = False
        self._has_given_up = False

    def read(
        self,
        context: Sequence[int],
        num_prompt: int,
        tools: Sequence[Mapping[str, object]],
        *,
        is_open: bool,
    ) -> ToolUse | None:
        """Read the tool calls of a reply; None if it has none, or none that can be read. Blocks.

        Args:
            context: token ids of prompt and reply.
            num_prompt: how many of them are the prompt.
            is_open: whether the reply begins as thinking (`ChatCodec.is_open`).
        """
        if self._has_given_up:
            return None
        prompt = context[max(0, num_prompt - _PROMPT_END) : num_prompt]
        try:
            reply = tuple(context[num_prompt:])
            return self._encoder.run(ReplyJob(tuple(prompt), reply, tuple(tools), is_open))
        except ClosedError:
            pass  # Another model is loaded, and only the text is sent.
        except UnreadableError as error:
            if not self._has_told:
                self._has_told = True
                self._warn(f"a reply with tool calls stays text, the first of this model: {error}")
        except EngineError as error:
            if not self._has_given_up:
                self._has_given_up = True
                self._warn(f"all replies stay text from now on: {error}")
        return None

    def openings(self) -> tuple[str, ...] | None:
        """The texts with which a tool call may begin (`Openings`); None if that is not certain, or
        takes too long to find out. Blocks.
        """
        try:
            found = self._encoder.run(OpeningsJob())
        except EngineError as error:
            self._warn(f"replies to requests with tools are sent only at their ends: {error}")
            return None
        if found.flaw:
            self._warn(
                f"tool calls stay text, except in replies that begin with one as JSON: {found.flaw}"
            )
        return found.texts

    def _warn(self, what: str) -> None:
        log.warning("%s: %s", self._model_key, what)
