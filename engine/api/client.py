"""EngineClient: the interface of an engine for the rest of the program, in plain data."""

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

# No sampling parameters: the model's defaults apply.
NOTHING_STATED: Mapping[str, object] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a chat; `role` is system, user, assistant or tool.

    Attributes:
        content: the text; for a tool, its result.
        thinking: the assistant's thinking before the content. The chat template gets it, and most
            templates drop it from all replies but the last.
        tool_calls: the assistant's tool calls; the content does not repeat them.
        tool_call_id, name: id of the call that a tool answers, and name of the tool, if known.
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
        messages: the whole chat, ending with the message to answer, or with the reply to continue.
        prompt: the prompt as text or as token ids, instead of `messages`. A text may contain
            special tokens, and no template is applied to it.
        sampling: overrides of the defaults by name (`engine.api.sampling.SamplingParams`).
        chat_defaults: whether the defaults are `ModelCard.chat_sampling`; else
            `ModelCard.sampling`.
        context: token ids of the leading messages, from the `Finish` of the previous turn.
        num_partial: None starts a new reply. Otherwise the last message is a partial reply to
            continue: the stream's first text repeats it, and the stream's end covers the whole
            reply. The number is how many of the context's last ids belong to the reply; if it is 0,
            or the context is not used, the reply is encoded from its text.
        repeats_partial: whether the stream repeats the partial reply. If not, that belongs to the
            prompt: the stream, the search for stop strings and the usage cover only the new text.
        priority: larger goes first.
        deadline: seconds after arrival by which the request must have left the queue.
        fork_of: another request, for several samples of one prompt. If that one still runs when
            this one is admitted, this one reuses its tokens as far as both agree: full blocks are
            shared, and a partly filled last block is copied.
        cache_salt: only requests with the same salt find its prefix in the cache. Those without a
            salt share theirs, and the pinned prefixes.
        trims_max_tokens: whether a `max_tokens` too large for the context behind the prompt is cut
            to fit; else the request is refused.
    """

    messages: tuple[ChatMessage, ...] = ()
    prompt: str | tuple[int, ...] | None = None
    sampling: Mapping[str, object] = field(default_factory=dict)
    chat_defaults: bool = False
    context: Context | None = None
    num_partial: int | None = None
    repeats_partial: bool = True
    request_id: str = field(default_factory=new_request_id)
    origin: Origin = Origin()
    priority: int = 0
    deadline: float | None = None
    fork_of: str | None = None
    cache_salt: str = ""
    trims_max_tokens: bool = False


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """Which model to load, and how. None leaves the choice to the registry and the machine.

    Attributes:
        model: a registry name, a folder, or a hub id.
        models_file: the registry; None is the built-in one.
        kv_memory: bytes for the KV pool; excludes `num_blocks`.
        swap_memory: bytes of host memory for swapped-out sequences; 0 is none.
        snapshot_memory: bytes for states of prefixes, if the model keeps states; 0 is none.
        quantize: format for quantized weights, one of `engine.api.config.QUANTIZATIONS`.
        knobs: start values of the live policy, by the names of `engine.api.knobs.Knobs`.
        spare_encoder: whether a second encoding process starts together with the model. Set it
            where strangers send prompts: if one of these is long or gets stuck, the others need not
            wait until a second process has started.
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
    spare_encoder: bool = False


class EngineClient(Protocol):
    """An engine, local or remote. Any thread may call it; all but `shutdown` returns at once."""

    def submit(
        self, submission: Submission, wake: Callable[[], None] | None = None
    ) -> RequestStream:
        """Queue a request. A refusal ends the stream and never raises.

        Args:
            wake: called when the stream has news, at most once a step for each distinct callable.
                It runs on the engine's text thread and must not block, because all streams wait for
                it. After `shutdown`, `submit` itself calls it.
        """
        ...

    def abort(self, request_id: str) -> None:
        """End a request at the next step boundary; ignores one that is unknown or has ended."""
        ...

    def set_priority(self, request_id: str, priority: int) -> None:
        """Change a request's priority at the next step boundary; ignores one that is unknown or has
        ended. A running request keeps its slot, and the new value counts when it waits again.

        Raises:
            InvalidRequestError: it is not an integer, or out of bounds; nothing was changed.
        """
        ...

    def status(self) -> EngineStatus: ...

    def snapshot(self) -> Snapshot | None:
        """The newest snapshot; None before a model is loaded. Each call requests a newer one."""
        ...

    def block(self, number: int) -> BlockView | None:
        """Details of a KV block, as of the last call for it. None until they are known, and if
        there is no such block. Each call requests newer details, which the engine collects between
        two steps.
        """
        ...

    def step_records(self, since: int) -> tuple[StepRecord, ...]:
        """The records of the steps after number `since`, as far as they are still kept. A model's
        last records stay until another model is loaded.
        """
        ...

    def set_knobs(self, changes: Mapping[str, object], who: str) -> Knobs:
        """Change knobs between two steps, all or none.

        Returns:
            all knobs as requested now. A snapshot with them follows, even if nothing changed and
            the engine is idle.

        Raises:
            InvalidConfigError: nothing was changed; the sentence names the knob and its range.
            UnavailableError: no model is loaded.
        """
        ...

    def undo_knobs(self, who: str, within: float = 0.0) -> KnobChange | None:
        """Undo the last change of knobs that has not been undone.

        Args:
            within: also undo earlier changes of the same knobs by the same person, each within so
                many seconds of the next.

        Returns:
            the change that this made; None if there was nothing to undo. A snapshot follows in
            either case, as with `set_knobs`.

        Raises:
            UnavailableError: no model is loaded.
        """
        ...

    def pin(self, name: str, messages: tuple[ChatMessage, ...]) -> None:
        """Protect the prefix shared by all chats that begin with these messages from eviction.

        The pin holds from the prefix's first computation until `unpin`, in models loaded later too.
        `Snapshot.pins` shows whether it fits.

        Args:
            name: for `unpin`; the prefix pinned under this name before is unpinned.
        """
        ...

    def unpin(self, name: str) -> None:
        """Make a pinned prefix evictable again; ignores an unknown name."""
        ...

    def tokenize(
        self,
        prompt: str | tuple[ChatMessage, ...],
        sampling: Mapping[str, object] = NOTHING_STATED,
        *,
        add_special_tokens: bool = True,
        user: str = "",
    ) -> Future[list[int]]:
        """Encode a prompt to token ids as a request would; it may be longer than the context.

        The futures of this and the next two methods may end with an `EngineError`: no model is
        loaded, or the input cannot be read. Their callbacks run on an engine thread. A future
        cancelled before its turn costs nothing.

        Args:
            prompt: a text, without a template, in which special tokens count; or a chat, with its
                template and the start of the next reply. If the last message is a reply, it is
                continued.
            sampling: as `Submission.sampling`; it has a chat's tools and template arguments.
            add_special_tokens: whether a text gets the tokenizer's tokens for the start of a
                sequence.
            user: the user in whose turn it is encoded (users take turns in the encoding queue).
        """
        ...

    def detokenize(self, token_ids: Sequence[int]) -> Future[str]:
        """Decode token ids, at most as many as the context holds, with special tokens by name. Its
        future is like that of `tokenize`.
        """
        ...

    def spell(self, token_ids: Sequence[int]) -> Future[list[str]]:
        """Decode each token id by itself, as `engine.api.logprobs.Candidate` does; otherwise like
        `detokenize`.
        """
        ...

    def load(self, request: LoadRequest) -> None:
        """Drain the engine, unload its model and load this one. `status` shows the progress."""
        ...

    def shutdown(self) -> None:
        """End every request, notify its owner and release the model.

        It blocks until the threads have ended, but at most 10 s for a step that does not return,
        and 1 s for a load. Such a load is abandoned, and stops when it next reports progress.
        """
        ...
