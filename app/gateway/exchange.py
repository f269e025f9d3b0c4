"""Exchange: the rules that hold for a running request over any gateway."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping

from app.gateway.faults import Fault
from app.gateway.view import Transcript
from app.store.conversation import Conversation, Message
from engine.api.client import ChatMessage
from engine.api.lifecycle import FinishReason
from engine.api.stream import Finish, RequestStream
from engine.api.tools import ToolUse

log = logging.getLogger(__name__)

# How many ended requests keep their transcripts.
ENDED_KEPT = 64
# All exchanges share one counter, so that the latest change has the largest version.
_versions = itertools.count(1)


def next_version() -> int:
    return next(_versions)


class Waker:
    """Makes a gateway's loop poll the engine's output. Calls before the poll are merged into one.

    Args:
        poll: called on the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, poll: Callable[[], None]) -> None:
        self._loop = loop
        self._poll = poll
        self._woken = False

    def wake(self) -> None:
        """Schedule a poll. May be called from any thread."""
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._run)
            except RuntimeError:
                log.debug("the loop has closed before the engine ended")

    def _run(self) -> None:
        self._woken = False
        self._poll()


def fault_of(finish: Finish | None, refusal: Fault | None) -> Fault | None:
    """The error of a reply; None if it runs or has succeeded.

    Args:
        refusal: the error that the client gets in place of the engine's abort.
    """
    if finish is None or finish.reason in (FinishReason.STOP, FinishReason.LENGTH):
        return None
    if finish.error is not None:
        return Fault.of(finish.error)
    return refusal or Fault(499, "the operator of the server stopped this request")


def log_end(
    user: str,
    endpoint: str,
    model: str,
    request_id: str,
    stream: RequestStream | None,
    finish: Finish | None,
    fault: Fault | None,
    *,
    left: bool = False,
) -> None:
    """Log one line for a reply that is over, with its figures as data (`app.process.logs`).

    Args:
        endpoint: where the request came in: a path of HTTP, `batch`, `page` or `mqtt`.
        request_id: the engine's.
        stream: None if the engine does not have the request any more.
        finish: None if the engine had not ended it.
        fault: the error that the client got.
        left: whether the client went away before the end.
    """
    facts: dict[str, object] = {
        "user": user,
        "endpoint": endpoint,
        "model": model,
        "id": request_id,
    }
    if finish is not None:
        usage, times = finish.usage, finish.timings
        facts |= {
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "output_tokens": usage.completion_tokens,
            "queue_s": _rounded(times.queue),
            "ttft_s": _rounded(times.ttft),
            "tpot_s": _rounded(times.tpot),
            "seconds": _rounded(times.e2e),
        }
    elif stream is not None:
        facts |= {
            "prompt_tokens": stream.num_prompt_tokens,
            "output_tokens": stream.num_output_tokens,
        }
    reason = FinishReason.ABORT if finish is None else finish.reason
    facts["end"] = "left" if left else str(reason)
    if fault is not None and not left:
        facts["error"] = fault.message
    log.info("%s", _sentence(facts), extra={"facts": facts})


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def _sentence(facts: Mapping[str, object]) -> str:
    """A line of the log, for a reader; what is unknown is left out."""
    tokens = (("prompt_tokens", "in"), ("cached_tokens", "cached"), ("output_tokens", "out"))
    times = (("queue_s", "queue"), ("ttft_s", "TTFT"), ("tpot_s", "TPOT"), ("seconds", "all"))
    parts = [f"{facts[key]} {word}" for key, word in tokens if facts.get(key) is not None]
    parts += [f"{word} {facts[key]:.3f} s" for key, word in times if facts.get(key) is not None]
    parts.append(f"end {facts['end']}" + (f": {facts['error']}" if "error" in facts else ""))
    return f"{facts['user']} {facts['endpoint']} {facts['model']} {facts['id']}: {', '.join(parts)}"


def as_messages(
    messages: Iterable[ChatMessage], conversation: Conversation, key: str
) -> Iterator[Message]:
    """Messages of a request, which no session stores, as the screen shows them.

    Args:
        key: identifies the request.
    """
    for place, turn in enumerate(messages):
        yield Message(
            id=f"{key}/{place}",
            conversation_id=conversation.id,
            parent_id=None,
            role=turn.role,
            content=turn.content,
            thinking=turn.thinking,
            tool_use=ToolUse(turn.tool_calls, turn.content) if turn.tool_calls else None,
            tool_call_id=turn.tool_call_id,
            name=turn.name,
            created=conversation.created,
        )


def transcript_of(
    conversation: Conversation,
    messages: Iterable[Message],
    version: int,
    running: str | None,
    stream: RequestStream | None,
) -> Transcript:
    """A chat in its current state.

    Args:
        running: the engine's id of its last reply; None if that has ended.
        stream: of that reply; None until the engine has it.
    """
    if running is None or stream is None:
        return Transcript(conversation, tuple(messages), running, version)
    return Transcript(
        conversation,
        tuple(messages),
        running,
        version,
        num_prompt_tokens=stream.num_prompt_tokens,
        num_output_tokens=stream.num_output_tokens,
        thought=stream.thought,
    )
