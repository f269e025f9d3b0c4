"""OpenAiForm: replies in chunks or as a whole, in the common format of OpenAI's completions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar

from app.gateway.faults import Fault
from app.gateway.http.endpoint import error_body
from app.gateway.http.generation import Form, event
from app.gateway.http.protocol.generating import Generating
from app.gateway.http.replies import Reply, compact, created, parts, usage_of
from engine.api.client import Submission
from engine.api.stream import Delta

_DONE = b"data: [DONE]\n\n"


class OpenAiForm(Form):
    """The chunks of a stream, or one answer.

    A chunk's choice goes between two pieces that are encoded once: 64 streams of 20 tokens/s make
    1,280 chunks a second.

    Attributes:
        prefix: of the id.
        kind, kind_of_chunk: the object names of an answer and of a chunk.
    """

    prefix: ClassVar[str]
    kind: ClassVar[str]
    kind_of_chunk: ClassVar[str]

    def __init__(self, asked: Generating, model: str, submissions: Sequence[Submission]) -> None:
        self._id = submissions[0].request_id
        self._choices = asked.choices
        self._includes_usage = asked.includes_usage
        self._replies = [Reply() for _ in submissions]
        self._about = {
            "id": f"{self.prefix}-{self._id}",
            "object": self.kind,
            "created": created(),
            "model": model,
        }
        head = self._about | {"object": self.kind_of_chunk}
        self._head = b"data: " + compact(head).encode()[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if self._includes_usage else b"]}\n\n"

    def add_delta(self, choice: int, delta: Delta) -> None:
        self._replies[choice].add_delta(delta)

    def closing_events(self) -> Iterator[bytes]:
        if self._includes_usage:
            usage = compact(self._usage()).encode()
            yield self._head + b'],"usage":' + usage + b"}\n\n"
        yield _DONE

    def failed(self, fault: Fault) -> Iterator[bytes]:
        yield event(error_body(fault))
        yield _DONE

    def whole(self) -> dict[str, object]:
        choices = [self._choice(at, reply) for at, reply in enumerate(self._replies)]
        return self._about | {"choices": choices, "usage": self._usage()}

    @abstractmethod
    def _choice(self, choice: int, reply: Reply) -> dict[str, object]:
        """A reply that has ended."""

    def _chunk(self, body: str) -> bytes:
        """A chunk with one choice, which is JSON."""
        return self._head + body.encode() + self._tail

    def _chunk_with(self, before: str, payload: object, after: str) -> Iterator[bytes]:
        """A chunk with one choice whose content may be large, in parts: after a slow reader it may
        hold the log-probabilities of a whole reply.
        """
        yield self._head + before.encode()
        yield from parts(payload)
        yield after.encode() + self._tail

    def _usage(self) -> dict[str, object]:
        """The token counts of all prompts and replies. A prompt counts once."""
        firsts = range(0, len(self._replies), self._choices)
        return usage_of([self._replies[at : at + self._choices] for at in firsts])
