"""Jobs: the work of an encoder, its limits, and the messages to and from its process.

A job travels to the process by pickle. The answer is plain data, because the process runs a model's
own code on text from strangers.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from engine.api.client import ChatMessage
from engine.api.errors import EngineError, InvalidRequestError, cause_of
from engine.api.stream import Context
from engine.api.structure import Structure
from engine.api.tools import ToolUse
from engine.structure.compiler import STACK_BYTES
from engine.structure.lead import Lead
from engine.text.openings import Openings
from engine.text.table import TokenTable

if TYPE_CHECKING:
    from engine.text.encoder import ChatEncoder

T = TypeVar("T")

MIB = 1 << 20
# On a busy core, 1 MB of honest text takes 2 s (prose, code) to 5 s (digits) and up to 450 MB, and
# five times that if each of its characters has to be separated (`ContentGuard`). A short prompt
# takes a millisecond, so one that does not end in `JOB_SECONDS` never will.
JOB_SECONDS = 10.0
_SECONDS_PER_BYTE = 20e-6
_JOB_MEMORY = 512 * MIB
_MEMORY_PER_BYTE = 1024

_RESULT, _REFUSAL, _UNREADABLE = b"a", b"r", b"u"
_WHOLE, _TAIL = b"w", b"t"
_BYTES_PER_TOKEN = 4


class Encoder(Protocol):
    """Runs jobs for one model, as `EncoderPool` does. Any thread may call it; it blocks."""

    def run(self, job: Job[T]) -> T:
        """Run a job.

        Raises:
            InvalidRequestError: the job is refused, or takes too much time or memory.
            UnreadableError: the model's response template cannot read the reply.
            EngineError: the process ended, or none can be started.
            UnavailableError: the model was closed.
        """
        ...


class UnreadableError(EngineError):
    """The model's response template cannot read the reply."""


class Job(ABC, Generic[T]):
    """Work for an encoder, which results in a `T`.

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
        text = f"{self.failure}: {self.doer} did not finish within {seconds:.3g} s"
        return InvalidRequestError(text, self.param)

    def greedy(self) -> InvalidRequestError:
        """The error if it used up its memory."""
        text = f"{self.name} needs more than {self.memory // MIB} MiB of memory in {self.doer}"
        return InvalidRequestError(text, self.param)

    def fatal(self, words: str) -> InvalidRequestError:
        """The error if it crashed its process, whose standard error ended with `words`."""
        text = f"{self.failure}: {self.doer} broke down over it: {words}"
        return InvalidRequestError(text, self.param)

    @abstractmethod
    def run(self, encoder: ChatEncoder) -> T:
        """Do the work; may raise anything."""

    @abstractmethod
    def pack(self, encoder: ChatEncoder) -> bytes:
        """Do the work, and pack its result."""

    @abstractmethod
    def unpack(self, packed: bytes) -> T:
        """Unpack the result of `pack`."""

    def answer(self, encoder: ChatEncoder) -> bytes:
        """Do the work in a process; returns the answer, even of a failure."""
        try:
            return _RESULT + self.pack(encoder)
        except BaseException as error:  # a panic of tokenizers is not an Exception
            return self._failed(error)

    def read(self, answer: bytes) -> T:
        """Read the answer of a process.

        Raises:
            InvalidRequestError: it is a refusal.
            UnreadableError: see there.
        """
        kind, packed = answer[:1], answer[1:]
        if kind == _REFUSAL:
            raise InvalidRequestError(*json.loads(packed))
        if kind == _UNREADABLE:
            raise UnreadableError(packed.decode())
        return self.unpack(packed)

    def _failed(self, error: BaseException) -> bytes:
        if isinstance(error, MemoryError):
            error = self.greedy()
        elif not isinstance(error, InvalidRequestError):
            error = InvalidRequestError(f"{self.failure}: {cause_of(error)}", self.param)
        return _REFUSAL + json.dumps([error.message, error.param]).encode()


class _Encoding(Job[list[int]]):
    """A job that results in token ids."""

    __slots__ = ()

    def pack(self, encoder: ChatEncoder) -> bytes:
        return array("I", self.run(encoder)).tobytes()

    def unpack(self, packed: bytes) -> list[int]:
        token_ids = array("I")
        token_ids.frombytes(packed)
        return token_ids.tolist()


class _Question(Job[T]):
    """A question about a model, which takes no text."""

    __slots__ = ()

    @property
    def num_bytes(self) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class PromptJob(_Encoding):
    """A prompt to encode (`ChatEncoder.encode`)."""

    messages: tuple[ChatMessage, ...]
    context: Context | None = None
    arguments: Mapping[str, object] = field(default_factory=dict)
    name: ClassVar[str] = "encoding the prompt"
    failure: ClassVar[str] = "the prompt cannot be encoded"
    doer: ClassVar[str] = "the model's chat template or tokenizer"

    def __reduce__(self) -> tuple[Any, ...]:
        # Only the context's last id is sent, because sending 32,000 ids there and back would take
        # milliseconds.
        last = self.context and replace(self.context, token_ids=self.context.token_ids[-1:])
        return PromptJob, (self.messages, last, dict(self.arguments))

    @property
    def num_bytes(self) -> int:
        return num_bytes(self.messages) + len(json.dumps(self.arguments))

    def run(self, encoder: ChatEncoder) -> list[int]:
        return encoder.encode(self.messages, self.context, self.arguments)

    def pack(self, encoder: ChatEncoder) -> bytes:
        if self.context is not None:
            tail = encoder.encode_after(self.messages, self.context, self.arguments)
            if tail is not None:
                return _TAIL + array("I", tail).tobytes()
        whole = encoder.encode(self.messages, None, self.arguments)
        return _WHOLE + array("I", whole).tobytes()

    def unpack(self, packed: bytes) -> list[int]:
        token_ids = _Encoding.unpack(self, packed[1:])
        if packed[:1] == _TAIL and self.context is not None:
            return [*self.context.token_ids, *token_ids]
        return token_ids


@dataclass(frozen=True, slots=True)
class PrefixJob(_Encoding):
    """The start of several chats, to find the tokens that they share
    (`ChatEncoder.common_prefix`)."""

    messages: tuple[ChatMessage, ...]
    arguments: Mapping[str, object] = field(default_factory=dict)
    name: ClassVar[str] = PromptJob.name
    failure: ClassVar[str] = PromptJob.failure
    doer: ClassVar[str] = PromptJob.doer

    @property
    def num_bytes(self) -> int:
        return num_bytes(self.messages) + len(json.dumps(self.arguments))

    def run(self, encoder: ChatEncoder) -> list[int]:
        return encoder.common_prefix(self.messages, self.arguments)


@dataclass(frozen=True, slots=True)
class TextJob(_Encoding):
    """A text to encode (`ChatEncoder.encode_text`)."""

    text: str
    is_whole: bool
    name: ClassVar[str] = "encoding the text"
    failure: ClassVar[str] = "the text cannot be encoded"
    doer: ClassVar[str] = "the model's tokenizer"

    @property
    def num_bytes(self) -> int:
        return text_bytes(self.text)

    def run(self, encoder: ChatEncoder) -> list[int]:
        return encoder.encode_text(self.text, is_whole=self.is_whole)


@dataclass(frozen=True, slots=True)
class PartialJob(_Encoding):
    """A partial reply to encode (`ChatEncoder.encode_partial`)."""

    reply: ChatMessage
    is_open: bool
    name: ClassVar[str] = "encoding the reply"
    failure: ClassVar[str] = "the reply cannot be continued"
    doer: ClassVar[str] = "the model's tokenizer"

    @property
    def num_bytes(self) -> int:
        return num_bytes([self.reply])

    def run(self, encoder: ChatEncoder) -> list[int]:
        return encoder.encode_partial(self.reply, is_open=self.is_open)


@dataclass(frozen=True, slots=True)
class EndsJob(_Encoding, _Question[list[int]]):
    """The tokens that end a reply by the chat template (`ChatEncoder.turn_ends`)."""

    name: ClassVar[str] = "finding out how replies end"
    failure: ClassVar[str] = "it cannot be determined how replies end"
    doer: ClassVar[str] = "the model's chat template"

    def run(self, encoder: ChatEncoder) -> list[int]:
        return encoder.turn_ends()


@dataclass(frozen=True, slots=True)
class OpeningsJob(_Question[Openings]):
    """The openings of tool calls (`ChatEncoder.openings`)."""

    name: ClassVar[str] = "finding out how tool calls begin"
    failure: ClassVar[str] = "it cannot be determined how tool calls begin"
    doer: ClassVar[str] = "the model's chat template or response template"

    def run(self, encoder: ChatEncoder) -> Openings:
        return encoder.openings()

    def pack(self, encoder: ChatEncoder) -> bytes:
        return json.dumps(self.run(encoder)).encode()

    def unpack(self, packed: bytes) -> Openings:
        texts, flaw = json.loads(packed)
        return Openings(None if texts is None else tuple(texts), flaw)


@dataclass(frozen=True, slots=True)
class ReplyJob(Job[ToolUse | None]):
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

    def run(self, encoder: ChatEncoder) -> ToolUse | None:
        return encoder.read_calls(self.prompt, self.reply, self.tools, is_open=self.is_open)

    def pack(self, encoder: ChatEncoder) -> bytes:
        use = self.run(encoder)
        return json.dumps(None if use is None else asdict(use)).encode()

    def unpack(self, packed: bytes) -> ToolUse | None:
        use = json.loads(packed)
        return None if use is None else ToolUse.load(use)

    def _failed(self, error: BaseException) -> bytes:
        if isinstance(error, MemoryError):
            return Job._failed(self, error)
        return _UNREADABLE + cause_of(error).encode(errors="replace")


@dataclass(frozen=True, slots=True)
class TableJob(_Question[TokenTable | None]):
    """The tokens, for decoding; None if only the tokenizer's own code decodes
    (`ChatEncoder.table`).
    """

    name: ClassVar[str] = "listing the tokens"
    failure: ClassVar[str] = "the tokens cannot be listed"
    doer: ClassVar[str] = "the model's tokenizer"

    def run(self, encoder: ChatEncoder) -> TokenTable | None:
        return encoder.table()

    def pack(self, encoder: ChatEncoder) -> bytes:
        table = self.run(encoder)
        if table is not None:
            with suppress(Exception):  # Its decoder is code, or a template is no JSON.
                return table.pack()
        return b""

    def unpack(self, packed: bytes) -> TokenTable | None:
        return TokenTable.unpack(packed) if packed else None


@dataclass(frozen=True, slots=True)
class CopyJob(_Question[bytes]):
    """The tokenizer, pickled for another such process (`ChatEncoder.pickled`)."""

    name: ClassVar[str] = "copying the tokenizer"
    failure: ClassVar[str] = "the tokenizer cannot be copied"
    doer: ClassVar[str] = "the model's tokenizer"

    def run(self, encoder: ChatEncoder) -> bytes:
        return encoder.pickled()

    def pack(self, encoder: ChatEncoder) -> bytes:
        return self.run(encoder)

    def unpack(self, packed: bytes) -> bytes:
        return packed


@dataclass(frozen=True, slots=True)
class WordsJob(_Question[list[bytes]]):
    """The bytes of each token, by id (`ChatEncoder.words`)."""

    name: ClassVar[str] = "spelling the vocabulary"
    failure: ClassVar[str] = "the vocabulary cannot be spelled"
    doer: ClassVar[str] = "the model's tokenizer"

    def run(self, encoder: ChatEncoder) -> list[bytes]:
        return encoder.words()

    def pack(self, encoder: ChatEncoder) -> bytes:
        words = self.run(encoder)
        lengths = array("I", map(len, words))
        return array("I", (len(words),)).tobytes() + lengths.tobytes() + b"".join(words)

    def unpack(self, packed: bytes) -> list[bytes]:
        numbers = array("I")
        width = numbers.itemsize
        numbers.frombytes(packed[:width])
        begin = width + width * numbers[0]
        lengths = array("I")
        lengths.frombytes(packed[width:begin])
        bounds = accumulate(lengths, initial=begin)
        return [packed[start:end] for start, end in pairwise(bounds)]


@dataclass(frozen=True, slots=True)
class StructureJob(_Question[str]):
    """A structure to compile, to find out whether that ends within bounds. Its cost depends on its
    content, not on its length.

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

    def run(self, encoder: ChatEncoder) -> str:
        return encoder.try_structure(self.structure, self.lead, self.ends, self.size)

    def pack(self, encoder: ChatEncoder) -> bytes:
        return self.run(encoder).encode()

    def unpack(self, packed: bytes) -> str:
        return packed.decode()


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
