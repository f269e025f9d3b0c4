"""ask: asks a server one question over MQTT and writes its answer to standard output."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from typing import Any

from app.gateway.mqtt.client import AskClient, AskError
from app.gateway.mqtt.protocol.replies import Accepted, DeltaReply, Final
from app.gateway.mqtt.protocol.requests import MAX_DEADLINE_MS, ChatRequest
from app.gateway.mqtt.protocol.topics import check_level
from app.gateway.mqtt.protocol.turns import ChatTurn
from app.process.exits import ExitCode
from app.process.process import StreamError, complain, is_terminal, print_text
from app.settings.flags import Ask
from app.settings.groups import stated
from app.settings.settings import Settings, SettingsError
from engine.api.errors import InvalidRequestError
from engine.core.admission import check_priority
from widgets.figures import duration

MIN_SECONDS = 0.1
MAX_SECONDS = MAX_DEADLINE_MS / 1e3


def build_request(options: Ask, question: str) -> ChatRequest:
    """The request that the options state.

    Raises:
        SettingsError: the session name is invalid, a number is out of range, or a text is not
            UTF-8.
    """
    # Comparisons with NaN are false.
    if not MIN_SECONDS <= options.timeout <= MAX_SECONDS:
        raise SettingsError(
            f"--timeout is {options.timeout:g}; it must be a number of seconds from"
            f" {MIN_SECONDS:g} to {MAX_SECONDS:g}"
        )
    sampling: dict[str, Any] = stated(options.sampling)
    stop = tuple(options.sampling.stop or ())
    try:
        check_priority(options.priority)
        if options.session is not None:
            check_level("--session", options.session)
        for text in (question, options.system or "", *stop):
            text.encode()  # the shell may pass anything
        turns = [ChatTurn(role="user", content=question)]
        if options.system is not None:
            turns.insert(0, ChatTurn(role="system", content=options.system))
        return ChatRequest(
            messages=tuple(turns),
            session_id=options.session,
            priority=options.priority,
            stream=not (options.no_stream or options.as_json),
            # The client waits no longer than the timeout, so the reply need not begin after it.
            deadline_ms=round(options.timeout * 1e3),
            **sampling | {"stop": stop or None},
        )
    except InvalidRequestError as error:
        raise SettingsError(f"--{error.message}") from None
    except UnicodeError:
        raise SettingsError("QUESTION, --system and --stop must be UTF-8") from None
    except ValueError as error:
        raise SettingsError(str(error)) from None


class ReplyWriter:
    """Writes a reply as it comes. The written text is always a prefix of an attempt's text.

    Deltas may be lost. After a gap, it waits for the whole text.

    Args:
        write: receives the text.
        notice: receives sentences for the user.
    """

    def __init__(self, write: Callable[[str], None], notice: Callable[[str], None]) -> None:
        self._write = write
        self._notice = notice
        self._of: tuple[str, int] | None = None
        self._next = 0
        self._written = ""

    def hear(self, reply: Accepted | DeltaReply) -> None:
        self._start_attempt(reply.request_id, reply.attempt)
        if isinstance(reply, DeltaReply) and reply.seq == self._next:
            self._next += 1
            self._write_text(reply.text)

    def end(self, final: Final) -> None:
        self._start_attempt(final.request_id, final.attempt)
        if not final.text.startswith(self._written):
            self.break_off()
        self._write_text(final.text[len(self._written) :])
        self._write("\n")

    def break_off(self) -> None:
        """End the line, so that the next output begins a new one."""
        if self._written:
            self._write("\n")
        self._written = ""

    def _start_attempt(self, request_id: str, attempt: int) -> None:
        if self._of == (request_id, attempt):
            return
        if self._written:
            self.break_off()
            self._notice("the server started again; the text above is void")
        self._of = (request_id, attempt)
        self._next = 0

    def _write_text(self, text: str) -> None:
        self._written += text
        if text:
            self._write(text)


def run(settings: Settings, options: Ask) -> int:
    """Ask, and write the answer as it comes; returns the exit code.

    Raises:
        SettingsError: there is no question, or something in it or in the options is wrong.
        AddressError: no broker is stated, or its password cannot be read.
        StreamError: the input or output failed.
        BrokenPipeError: the reader of the output has gone.
    """
    request = build_request(options, _question(options.question))
    writer = ReplyWriter(_write, complain)
    try:
        final = asyncio.run(_ask(settings, options, request, writer))
    except AskError as error:
        writer.break_off()
        if options.as_json and error.reply is not None:
            _write(f"{error.reply.encode().decode()}\n")
        else:
            complain(str(error))
        return ExitCode.FAILED
    except KeyboardInterrupt:
        writer.break_off()
        raise
    except asyncio.CancelledError:  # by the handler of SIGTERM
        writer.break_off()
        return ExitCode.TERMINATED
    if options.as_json:
        _write(f"{final.encode().decode()}\n")
        return ExitCode.OK
    writer.end(final)
    if is_terminal(sys.stderr):
        complain(_costs(final))
    return ExitCode.OK


async def _ask(
    settings: Settings, options: Ask, request: ChatRequest, writer: ReplyWriter
) -> Final:
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    # As with Ctrl-C, the server is notified before we exit. asyncio's own handlers would replace
    # those by which the watchdog sees signals.

    def cancel(*_: object) -> None:
        loop.call_soon_threadsafe(task.cancel)

    before = signal.signal(signal.SIGTERM, cancel)
    try:
        async with AskClient(settings.mqtt, settings.mqtt.address(), complain) as client:
            heard = writer.hear if request.stream else lambda _: None
            return await client.ask(request, options.timeout, heard)
    finally:
        signal.signal(signal.SIGTERM, before)


def _write(text: str) -> None:
    print_text(text, end="")


def _question(stated: str | None) -> str:
    """The question: the argument, or the content of standard input.

    Raises:
        SettingsError: there is none.
        StreamError: standard input cannot be read, or is not UTF-8.
    """
    if stated is None and is_terminal(sys.stdin):
        raise SettingsError("QUESTION is missing; it must be stated, or - to type it here")
    try:
        if stated is None or stated == "-":
            stated = sys.stdin.buffer.read().decode("utf-8-sig") if sys.stdin is not None else ""
    except OSError as error:
        raise StreamError(f"standard input cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise StreamError(f"standard input is not UTF-8: {error}") from None
    if not stated.strip():
        raise SettingsError("QUESTION is empty; it must have some text")
    return stated


def _costs(final: Final) -> str:
    usage, timings = final.usage, final.timings
    parts = [
        f"{usage.prompt_tokens:,} tokens of prompt, {usage.cached_tokens:,} of them cached",
        f"{usage.completion_tokens:,} of reply",
    ]
    if timings.ttft_ms is not None:
        parts.append(f"the first after {duration(timings.ttft_ms / 1000)}")
    if timings.tpot_ms is not None:
        parts.append(f"then {duration(timings.tpot_ms / 1000)} each")
    return ", ".join(parts)
