"""Jobs: requests to an encoder's process, their limits, and the answers."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate, pairwise
from typing import ClassVar

from engine.api.client import ChatMessage
from engine.api.errors import EngineError, InvalidRequestError
from engine.api.stream import Context
from engine.api.structure import Structure
from engine.api.tools import ToolUse
from engine.structure.compiler import STACK_BYTES
from engine.structure.lead import Lead
from engine.text.openings import Openings

MIB = 1 << 20
# On a busy core, 1 MB of honest text takes 2 s (prose, code) to 5 s (digits) and up to 450 MB, and
# five times that if each of its characters has to be separated (`ContentGuard`). A short prompt
# takes a millisecond, so one that does not end in `JOB_SECONDS` never will.
JOB_SECONDS = 10.0
_SECONDS_PER_BYTE = 20e-6
_JOB_MEMORY = 512 * MIB
_MEMORY_PER_BYTE = 1024

_WHOLE, _TAIL, _REFUSAL, _CALLS, _UNREADABLE = b"w", b"t", b"r", b"c", b"u"
_WORDS, _RULES, _OPENINGS = b"s", b"g", b"o"
_BYTES_PER_TOKEN = 4


class Job(ABC):
    """A request to a process.

    Attributes:
        name, failure: the work, and its failure, as text for errors.
        doer: the code that does it, mostly the model's own, as text for errors.
        param: the request's field that it concerns.
        stack: bytes of address space for the stack of its own thread.
    """

    __slots__ = ()
    name: ClassVar[str]
    failure: ClassVar[str]
    doer: ClassVar[str]
    param: ClassVar[str] = "prompt"
    stack: ClassVar[int] = 0

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Approximate size of the text."""

    @property
    def seconds(self) -> float:
        """Time beyond `JOB_SECONDS` for the length of the text."""
        return _SECONDS_PER_BYTE * self.num_bytes

    @property
    def memory(self) -> int:
        """Bytes that it may need beyond those that the process already has."""
        return _JOB_MEMORY + _MEMORY_PER_BYTE * self.num_bytes

    def late(self, seconds: float) -> InvalidRequestError:
        """The error if it used up its time, `seconds`."""
        text = f"{self.failure}: {self.doer} did not come to an end within {seconds:.3g} s"
        return InvalidRequestError(text, self.param)

    def greedy(self) -> InvalidRequestError:
        """The error if it used up its memory."""
        text = f"{self.name} needs more than {self.memory // MIB} MiB of memory in {self.doer}"
        return InvalidRequestError(text, self.param)

    def fatal(self, words: str) -> InvalidRequestError:
        """The error if it crashed its process, whose last words are `words`."""
        text = f"{self.failure}: {self.doer} broke down over it: {words}"
        return InvalidRequestError(text, self.param)


@dataclass(frozen=True, slots=True)
class PromptJob(Job):
    """A prompt to encode.

    Attributes:
        messages: the chat, or the shared beginning of chats.
        context: as for `ChatEncoder.encode`, but with only its last id, because sending 32,000 ids
            there and back would take milliseconds.
        common: whether to compute `ChatEncoder.common_prefix` instead of a prompt.
        arguments: arguments of the chat template, by name.
    """

    messages: tuple[ChatMessage, ...]
    context: Context | None = None
    common: bool = False
    arguments: Mapping[str, object] = field(default_factory=dict)
    name: ClassVar[str] = "encoding the prompt"
    failure: ClassVar[str] = "the prompt cannot be encoded"
    doer: ClassVar[str] = "the model's chat template or tokenizer"

    @property
    def num_bytes(self) -> int:
        return num_bytes(self.messages) + len(json.dumps(self.arguments))


@dataclass(frozen=True, slots=True)
class ReplyJob(Job):
    """A reply whose tool calls are to be read (`engine.text.calls.read_calls`)."""

    prompt: tuple[int, ...]
    reply: tuple[int, ...]
    tools: tuple[Mapping[str, object], ...]
    is_open: bool
    name: ClassVar[str] = "reading the reply"
    failure: ClassVar[str] = "the reply cannot be read"
    doer: ClassVar[str] = "the model's response template"

    @property
    def num_bytes(self) -> int:
        return _BYTES_PER_TOKEN * (len(self.prompt) + len(self.reply)) + len(json.dumps(self.tools))


@dataclass(frozen=True, slots=True)
class OpeningsJob(Job):
    """A request for the openings of tool calls (`ChatEncoder.openings`)."""

    name: ClassVar[str] = "finding out how tool calls begin"
    failure: ClassVar[str] = "how tool calls begin cannot be found out"
    doer: ClassVar[str] = "the model's chat template or response template"

    @property
    def num_bytes(self) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class EndsJob(Job):
    """A request for the tokens that end a reply by the chat template (`ChatEncoder.turn_ends`)."""

    name: ClassVar[str] = "finding out how replies end"
    failure: ClassVar[str] = "how replies end cannot be found out"
    doer: ClassVar[str] = "the model's chat template"

    @property
    def num_bytes(self) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class TextJob(Job):
    """A text to encode by `ChatEncoder.encode_text`."""

    text: str
    is_whole: bool
    name: ClassVar[str] = "encoding the text"
    failure: ClassVar[str] = "the text cannot be encoded"
    doer: ClassVar[str] = "the model's tokenizer"

    @property
    def num_bytes(self) -> int:
        return text_bytes(self.text)


@dataclass(frozen=True, slots=True)
class BegunJob(Job):
    """A partial reply to encode by `ChatEncoder.encode_begun`."""

    reply: ChatMessage
    is_open: bool
    name: ClassVar[str] = "encoding the reply"
    failure: ClassVar[str] = "the reply cannot be gone on with"
    doer: ClassVar[str] = "the model's tokenizer"

    @property
    def num_bytes(self) -> int:
        return num_bytes([self.reply])


@dataclass(frozen=True, slots=True)
class WordsJob(Job):
    """A request for the bytes of each token, by id."""

    name: ClassVar[str] = "spelling the vocabulary"
    failure: ClassVar[str] = "the vocabulary cannot be spelled"
    doer: ClassVar[str] = "the model's tokenizer"

    @property
    def num_bytes(self) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class StructureJob(Job):
    """A structure to compile, to find out whether that ends within bounds.

    Attributes:
        ends: token ids that end an output.
        size: number of the model's logits.
    """

    structure: Structure
    lead: Lead
    ends: tuple[int, ...]
    size: int
    name: ClassVar[str] = "compiling the structure"
    failure: ClassVar[str] = "the structure cannot be compiled"
    doer: ClassVar[str] = "the compiler of grammars"
    param: ClassVar[str] = "structure"
    stack: ClassVar[int] = STACK_BYTES

    @property
    def num_bytes(self) -> int:
        return 0  # The cost of compiling depends on the source's content, not on its length.


def text_bytes(text: str) -> int:
    """Size of a text as UTF-8 in bytes, whatever it contains."""
    return len(text.encode(errors="surrogatepass"))


def num_bytes(messages: Sequence[ChatMessage]) -> int:
    """Size of the messages' text as UTF-8 in bytes. Content that is not text counts as 0."""
    return sum(
        text_bytes(text)
        for message in messages
        for text in (
            *(message.content, message.thinking, message.name, message.tool_call_id),
            *(text for call in message.tool_calls for text in (call.name, call.arguments)),
        )
        if isinstance(text, str)
    )


def pack_ids(token_ids: Sequence[int], *, is_tail: bool = False) -> bytes:
    """Pack the token ids of a prompt; if `is_tail`, only those after the context's."""
    return (_TAIL if is_tail else _WHOLE) + array("I", token_ids).tobytes()


def pack_refusal(error: EngineError) -> bytes:
    """Pack an error as an answer; `param` names the field at fault."""
    return _REFUSAL + json.dumps([error.message, error.param]).encode()


def pack_use(use: ToolUse | None) -> bytes:
    """Pack the tool calls of a reply."""
    return _CALLS + json.dumps(None if use is None else asdict(use)).encode()


def pack_words(words: Sequence[bytes]) -> bytes:
    """Pack the bytes of each token."""
    lengths = array("I", map(len, words))
    return _WORDS + array("I", (len(words),)).tobytes() + lengths.tobytes() + b"".join(words)


def pack_rules(rules: str) -> bytes:
    """Pack a compiled grammar."""
    return _RULES + rules.encode()


def pack_openings(openings: Openings) -> bytes:
    """Pack the openings of tool calls."""
    return _OPENINGS + json.dumps(openings).encode()


def pack_unreadable(why: str) -> bytes:
    return _UNREADABLE + why.encode(errors="replace")


class UnreadableError(EngineError):
    """The model's response template cannot read the reply."""


def read_use(answer: bytes) -> ToolUse | None:
    """Unpack the tool calls of a reply.

    Raises:
        UnreadableError: the reply cannot be read.
        InvalidRequestError: the answer is a refusal.
    """
    if answer[:1] == _UNREADABLE:
        raise UnreadableError(answer[1:].decode())
    _check(answer)
    told = json.loads(answer[1:])
    return None if told is None else ToolUse.load(told)


def read_words(answer: bytes) -> list[bytes]:
    """Unpack the bytes of each token.

    Raises:
        InvalidRequestError: the answer is a refusal.
    """
    _check(answer)
    numbers = array("I")
    width = numbers.itemsize
    first = 1 + width
    numbers.frombytes(answer[1:first])
    begin = first + width * numbers[0]
    lengths = array("I")
    lengths.frombytes(answer[first:begin])
    bounds = accumulate(lengths, initial=begin)
    return [answer[start:end] for start, end in pairwise(bounds)]


def read_rules(answer: bytes) -> str:
    """Unpack a compiled grammar.

    Raises:
        InvalidRequestError: the answer is a refusal.
    """
    _check(answer)
    return answer[1:].decode()


def read_openings(answer: bytes) -> Openings:
    """Unpack the openings of tool calls.

    Raises:
        InvalidRequestError: the answer is a refusal.
    """
    _check(answer)
    texts, flaw = json.loads(answer[1:])
    return Openings(None if texts is None else tuple(texts), flaw)


def _check(answer: bytes) -> None:
    """Raises InvalidRequestError if the answer is a refusal."""
    if answer[:1] == _REFUSAL:
        raise InvalidRequestError(*json.loads(answer[1:]))


def read_answer(answer: bytes, context: Context | None) -> list[int]:
    """Unpack the token ids of the prompt.

    Args:
        context: the context before it was cut to its last id.

    Raises:
        InvalidRequestError: the answer is a refusal.
    """
    _check(answer)
    token_ids = array("I")
    token_ids.frombytes(answer[1:])
    if answer[:1] == _TAIL and context is not None:
        return [*context.token_ids, *token_ids]
    return token_ids.tolist()
