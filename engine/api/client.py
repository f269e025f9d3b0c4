"""EngineClient: what the rest of the program may ask of an engine, in plain data."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from engine.api.block_map import BlockView
from engine.api.knobs import KnobChange, Knobs
from engine.api.origin import Origin
from engine.api.snapshot import Snapshot
from engine.api.status import EngineStatus
from engine.api.stream import Context, RequestStream
from engine.api.telemetry import StepRecord
from engine.api.tools import ToolCall

# Sampling parameters that are all left to the model.
NOTHING_STATED: Mapping[str, object] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a chat; `role` is system, user, assistant or tool.

    Attributes:
        content: of a tool, what it gave.
        thinking: what the assistant thought before it said the content. The chat template is told
            of it, and most drop it from all replies but the last.
        tool_calls: the tools that the assistant called; the content does not repeat them.
        tool_call_id, name: of the call that a tool answers, and of the tool, where they are known.
    """

    role: str
    content: str
    thinking: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""


def new_request_id() -> str:
    return uuid.uuid4().hex[:12]


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A request as its owner states it.

    Attributes:
        messages: the whole chat, ending with the message to answer, or with the reply to go on
            with.
        prompt: the prompt as text or as token ids, instead of `messages`. A text may spell special
            tokens, and no template is put around it.
        sampling: replaces defaults by name (`engine.api.sampling.SamplingParams`).
        chat_defaults: whether these are `ModelCard.chat_sampling`; else they are
            `ModelCard.sampling`.
        context: token ids of the leading messages, from the `Finish` of the turn before.
        begun: None asks for a new reply. Else the last message is a reply that was cut off, and
            what comes goes on with it: the first text of the stream repeats it, and its end is that
            of the whole reply. The number says how many of the context's last ids are the reply's;
            if it is 0, or the context is set aside, the reply is encoded from its text.
        repeats_begun: whether what comes is told so. Otherwise what there was of the reply belongs
            to the prompt: the stream has only what follows, stop strings are looked for in that
            alone, and the usage counts that.
        priority: larger goes first.
        deadline: seconds after arrival by which it must have left the queue.
        fork_of: another request, for several samples of one prompt. If that one still runs when
            this one is admitted, this one starts from its tokens as far as both agree, and shares
            their full blocks; the last, partly filled block is copied.
        cache_salt: only requests of the same salt find its prefix in the cache. Those without one
            share theirs, and the prefixes that are pinned.
        trims_max_tokens: whether a `max_tokens` for which the context has no room behind the prompt
            is cut to what fits; else the request is refused.
    """

    messages: tuple[ChatMessage, ...] = ()
    prompt: str | tuple[int, ...] | None = None
    sampling: Mapping[str, object] = field(default_factory=dict)
    chat_defaults: bool = False
    context: Context | None = None
    begun: int | None = None
    repeats_begun: bool = True
    request_id: str = field(default_factory=new_request_id)
    origin: Origin = Origin()
    priority: int = 0
    deadline: float | None = None
    fork_of: str | None = None
    cache_salt: str = ""
    trims_max_tokens: bool = False


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """Which model to load, and how. None leaves a choice to the registry and the machine.

    Attributes:
        model: a registry name, a folder, or a hub id.
        models_file: the registry; None is the one that ships.
        kv_memory: bytes for the KV pool; it may not be given together with `num_blocks`.
        swap_memory: bytes of host memory for sequences that are swapped out; 0 is none.
        snapshot_memory: bytes for the states of prefixes, of a model that keeps states; 0 is none.
        quantize: what weights are quantized to, of `engine.api.config.QUANTIZATIONS`.
        knobs: where the live policy starts, by the names of `engine.api.knobs.Knobs`.
    """

    model: str
    models_file: str | None = None
    device: str | None = None
    dtype: str | None = None
    kv_memory: int | None = None
    num_blocks: int | None = None
    swap_memory: int | None = None
    snapshot_memory: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    quantize: str | None = None
    knobs: Mapping[str, object] = field(default_factory=dict, hash=False)


class EngineClient(Protocol):
    """An engine, here or elsewhere. Any thread may call it; all but `shutdown` return at once."""

    def submit(
        self, submission: Submission, wake: Callable[[], None] | None = None
    ) -> RequestStream:
        """Queue a request. A refusal comes as the stream's end, never as an exception.

        Args:
            wake: called when the stream has news, at most once a step for each distinct callable.
                The engine's text thread calls it, so it must not block: all streams wait for it.
                After `shutdown` it is called from within `submit`.
        """
        ...

    def abort(self, request_id: str) -> None:
        """End a request at the next step boundary; an unknown or ended one is ignored."""
        ...

    def set_priority(self, request_id: str, priority: int) -> None:
        """Change a request's priority at the next step boundary; an unknown or ended one is
        ignored. A running request keeps its slot, and has the new value when it waits again.

        Raises:
            InvalidRequestError: it is no integer within bounds; nothing was changed.
        """
        ...

    def status(self) -> EngineStatus: ...

    def snapshot(self) -> Snapshot | None:
        """The newest snapshot; None before a model is loaded. Asking has a newer one made."""
        ...

    def block(self, number: int) -> BlockView | None:
        """A block of the KV pool in full, as it was when this was last asked for; None until that
        is known, and if there is no such block. Asking has a newer one made between two steps.
        """
        ...

    def step_records(self, since: int) -> tuple[StepRecord, ...]:
        """The records of steps numbered above `since` that are still held. Those of the last steps
        on a model stay until another one is loaded.
        """
        ...

    def set_knobs(self, changes: Mapping[str, object], who: str) -> Knobs:
        """Change knobs between two steps, all or none.

        Returns:
            all knobs as they are requested now. A snapshot that has them follows, even if nothing
            changed, and even if the engine is idle.

        Raises:
            InvalidConfigError: nothing was changed; the sentence names the knob and its range.
            UnavailableError: no model is loaded.
        """
        ...

    def undo_knobs(self, who: str, within: float = 0.0) -> KnobChange | None:
        """Take back the last change of knobs that was not taken back.

        Args:
            within: with it go those of the same knobs by the same person before it, as far as each
                came within so many seconds of the next.

        Returns:
            what that changed; None if there was nothing to take back. A snapshot follows in either
            case, as with `set_knobs`.

        Raises:
            UnavailableError: no model is loaded.
        """
        ...

    def pin(self, name: str, messages: tuple[ChatMessage, ...]) -> None:
        """Keep the prefix that all chats beginning with these messages share from eviction.

        It is kept from when it is first computed until `unpin`, in models loaded later too.
        `Snapshot.pins` shows whether it fits.

        Args:
            name: what `unpin` takes; a prefix that was pinned under this name before is let go.
        """
        ...

    def unpin(self, name: str) -> None:
        """Let a pinned prefix be evicted again; an unknown name is ignored."""
        ...

    def tokenize(
        self,
        prompt: str | tuple[ChatMessage, ...],
        sampling: Mapping[str, object] = NOTHING_STATED,
        *,
        add_special_tokens: bool = True,
        user: str = "",
    ) -> Future[list[int]]:
        """The token ids of a prompt, which may be longer than the context, as a request has them.

        Futures of this and the next two may end with an `EngineError`: no model is loaded, or what
        was given cannot be read. Their callbacks run on a thread of the engine. One that is
        cancelled before its turn costs nothing.

        Args:
            prompt: a text, which no template is put around and which may spell special tokens; or
                a chat, with what the template puts around its messages and before the next reply.
                A reply that ends it is one that is gone on with.
            sampling: as `Submission.sampling`; a chat's tools and arguments of its template are in
                it.
            add_special_tokens: whether a text begins as the tokenizer begins sequences.
            user: by whom it takes turns with prompts at being encoded.
        """
        ...

    def detokenize(self, token_ids: Sequence[int]) -> Future[str]:
        """The text of token ids, at most as many as the context holds, special tokens by their
        names. Futures are as those of `tokenize`.
        """
        ...

    def spell(self, token_ids: Sequence[int]) -> Future[list[str]]:
        """The text of each token id by itself, as `engine.api.logprobs.Candidate` has it; else
        as `detokenize`.
        """
        ...

    def load(self, request: LoadRequest) -> None:
        """Drain the engine, unload its model, load this one. `status` says how that goes."""
        ...

    def shutdown(self) -> None:
        """End every request, tell its owner, release the model.

        It blocks until the threads have ended, but waits at most 10 s for a step that does not
        return, and 1 s for a load that does not. Such a load is left to itself, and breaks off when
        it next reports progress.
        """
        ...
