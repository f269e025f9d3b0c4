"""EngineClient: what the rest of the program may ask of an engine, in plain data."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from engine.knobs import Knobs
from engine.request import Origin
from engine.snapshot import EngineStatus, Snapshot
from engine.stream import Context, RequestStream
from engine.telemetry import StepRecord


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a chat; `role` is system, user or assistant."""

    role: str
    content: str


def new_request_id() -> str:
    return uuid.uuid4().hex[:12]


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A request as its owner states it.

    Attributes:
        messages: the whole chat, ending with the message to answer.
        prompt_token_ids: the prompt as ids, instead of `messages`.
        sampling: replaces the model's defaults by name (`engine.request.SamplingParams`).
        context: token ids of the leading messages, from the `Finish` of the turn before.
        priority: larger goes first.
        deadline: seconds after arrival by which it must have left the queue.
        parent: request that this one repeats or continues.
        attempt: counts from 1 where the same request is run again.
        fork_of: request whose tokens this one starts from as far as theirs agree, sharing their
            blocks, if that one still runs: for several samples of one prompt.
    """

    messages: tuple[ChatMessage, ...] = ()
    prompt_token_ids: tuple[int, ...] | None = None
    sampling: Mapping[str, object] = field(default_factory=dict)
    context: Context | None = None
    request_id: str = field(default_factory=new_request_id)
    origin: Origin = Origin()
    priority: int = 0
    deadline: float | None = None
    parent: str | None = None
    attempt: int = 1
    fork_of: str | None = None


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """Which model to load and how; None leaves the choice to the registry and the machine.

    Attributes:
        model: a registry name, a folder, or a hub id.
        models_file: the registry; None is the one that ships.
        kv_memory: bytes for the KV pool; excludes `num_blocks`.
        knobs: where the live policy starts, by the names of `engine.knobs.Knobs`.
    """

    model: str
    models_file: str | None = None
    device: str | None = None
    dtype: str | None = None
    kv_memory: int | None = None
    num_blocks: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    knobs: Mapping[str, object] = field(default_factory=dict, hash=False)


class EngineClient(Protocol):
    """An engine, here or elsewhere. From any thread; all calls but `shutdown` return at once."""

    def submit(
        self, submission: Submission, wake: Callable[[], None] | None = None
    ) -> RequestStream:
        """Queue a request. A refusal comes as the stream's end, never as an exception.

        Args:
            wake: called when the stream has news, at most once a step for each distinct callable.
                It comes from the engine's text thread, and must not block: all streams wait for it.
                After `shutdown` it comes from within this call.
        """
        ...

    def abort(self, request_id: str) -> None:
        """End a request at the next step boundary; unknown and ended ones are ignored."""
        ...

    def set_priority(self, request_id: str, priority: int) -> None:
        """Change a request's priority at the next step boundary; unknown and ended ones are
        ignored. One that runs keeps its slot, and has the new value when it waits again.

        Raises:
            InvalidRequestError: no integer within bounds; nothing was changed.
        """
        ...

    def status(self) -> EngineStatus: ...

    def snapshot(self) -> Snapshot | None:
        """The newest snapshot, and a wish for a newer one; None before a model is loaded."""
        ...

    def step_records(self, since: int) -> tuple[StepRecord, ...]:
        """Records of steps numbered above `since`, as far as they are still held."""
        ...

    def set_knobs(self, changes: Mapping[str, object], who: str) -> Knobs:
        """Change knobs between two steps, all or none.

        Returns:
            all knobs as they are asked for now; a snapshot that has them follows, whether or not
            anything changed and the engine is idle.

        Raises:
            InvalidConfigError: nothing was changed; the sentence names the knob and its range.
            UnavailableError: no model is loaded.
        """
        ...

    def undo_knobs(self, who: str) -> Knobs:
        """Take back the last change of knobs; returns and raises as `set_knobs`."""
        ...

    def pin(self, name: str, messages: tuple[ChatMessage, ...]) -> None:
        """Never evict what chats that begin with these messages have in common, once computed.

        It holds for models loaded later, too, until `unpin`. Whether it fits shows in
        `Snapshot.pins`.

        Args:
            name: for `unpin`; what was pinned under it before is let go.
        """
        ...

    def unpin(self, name: str) -> None:
        """Let a pinned prefix be evicted again; an unknown name is ignored."""
        ...

    def load(self, request: LoadRequest) -> None:
        """Drain, unload, load. Progress and failure show in `status`."""
        ...

    def shutdown(self) -> None:
        """End every request, tell its owner, release the model.

        Blocks until the threads ended; 10 s at most for a step or a load that does not return.
        """
        ...
