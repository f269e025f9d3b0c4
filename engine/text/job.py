"""Job: what an encoder's process is asked to do, what it may take for that, and its answer."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.api.client import ChatMessage
from engine.api.errors import InvalidRequestError
from engine.api.stream import Context

MIB = 1 << 20
# On a busy core, 1 MB of honest text takes 2 s (prose, code) to 5 s (digits) and up to 450 MB, and
# five times that if each of its characters has to be set apart (`ContentGuard`). A short prompt
# takes a millisecond, so one that does not end in `JOB_SECONDS` never will.
JOB_SECONDS = 10.0
_SECONDS_PER_BYTE = 20e-6
_JOB_MEMORY = 512 * MIB
_MEMORY_PER_BYTE = 1024

_WHOLE, _TAIL, _REFUSAL = b"w", b"t", b"r"


@dataclass(frozen=True, slots=True)
class Job:
    """A prompt to encode.

    Attributes:
        messages: the chat, or the beginning that chats share.
        context: as `ChatEncoder.encode` takes it, but with only the last of its ids. It would take
            milliseconds to send 32,000 of them there and back.
        common: whether what is wanted is `ChatEncoder.common_prefix`, not a prompt.
        arguments: of the chat template, by name.
    """

    messages: tuple[ChatMessage, ...]
    context: Context | None = None
    common: bool = False
    arguments: Mapping[str, object] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        return num_bytes(self.messages) + len(json.dumps(self.arguments))

    @property
    def seconds(self) -> float:
        """Time beyond `JOB_SECONDS` that the length of the text allows."""
        return _SECONDS_PER_BYTE * self.num_bytes

    @property
    def memory(self) -> int:
        """Bytes that it may need beside those that the process has already."""
        return _JOB_MEMORY + _MEMORY_PER_BYTE * self.num_bytes


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why there are no token ids.

    Attributes:
        param: name of the field at fault; None if none is.
    """

    message: str
    param: str | None


def num_bytes(messages: Sequence[ChatMessage]) -> int:
    """Bytes of the text of messages as UTF-8. Content that is no text counts as 0."""
    return sum(
        len(text.encode(errors="surrogatepass"))
        for message in messages
        for text in (message.content, message.thinking)
        if isinstance(text, str)
    )


def pack_ids(token_ids: Sequence[int], *, is_tail: bool = False) -> bytes:
    """An answer with the token ids of a prompt; if `is_tail`, with those behind the context's."""
    return (_TAIL if is_tail else _WHOLE) + array("I", token_ids).tobytes()


def pack_refusal(refusal: Refusal) -> bytes:
    return _REFUSAL + json.dumps([refusal.message, refusal.param]).encode()


def read_answer(answer: bytes, context: Context | None) -> list[int]:
    """Take the token ids of the prompt from an answer.

    Args:
        context: the context before it was cut to its last id.

    Raises:
        InvalidRequestError: the answer is a refusal.
    """
    if answer[:1] == _REFUSAL:
        message, param = json.loads(answer[1:])
        raise InvalidRequestError(message, param)
    token_ids = array("I")
    token_ids.frombytes(answer[1:])
    if answer[:1] == _TAIL and context is not None:
        return [*context.token_ids, *token_ids]
    return token_ids.tolist()
