"""StdioGateway: each line of standard input is a turn, and its reply goes to standard output."""

from __future__ import annotations

import json
import queue
import threading
import time
from codecs import BOM_UTF8
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Protocol

from app.conversations.session import ChatSession
from app.gateway.control import Answer, Control, read_control
from app.store.conversation import Conversation, Message
from app.system.engine_crash import check_engine
from engine.api.client import EngineClient
from engine.api.errors import ErrorInfo, InvalidRequestError, OverloadedError, UnavailableError
from engine.api.lifecycle import Timings
from engine.api.logprobs import Candidate, OutputToken
from engine.api.waiting import in_words

SOURCE = "stdin"
MAX_LINE_BYTES = 16 << 20
RETRY_SECONDS = 0.1
# The interval of engine checks. An engine that stands still at two checks in a row stays so until a
# knob is changed.
STALL_SECONDS = 1.0
_CHUNK = 1 << 16


class Source(Protocol):
    """The input of lines."""

    def read(self, size: int, /) -> bytes:
        """The available bytes, at most `size`; empty at the end."""
        ...


class Sink(Protocol):
    """The output for replies."""

    def write(self, data: bytes, /) -> object: ...

    def flush(self) -> object: ...


class StdioGateway:
    """Reads lines of UTF-8 and writes replies, as text or as lines of JSON.

    A refused line is reported, and does not stop those that follow. If the engine has crashed, the
    line is reported and `EngineCrashError` is raised.

    Args:
        client: the engine.
        source: the input of lines.
        sink: the output for replies.
        complain: called with one sentence on each line that failed, if replies are text.
        system: system prompt of each conversation.
        sampling: replaces the model's defaults by name.
        as_json: whether each reply and each refusal is a JSON object, with log-probabilities if
            `sampling` enables them. A line that is a control message is then executed and answered
            at once. Otherwise replies are text.
        sleep: waits before a request that found the queue full is sent again.
    """

    def __init__(
        self,
        client: EngineClient,
        source: Source,
        sink: Sink,
        complain: Callable[[str], None],
        *,
        system: str = "",
        sampling: Mapping[str, object] | None = None,
        as_json: bool = False,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = client
        self._sink = sink
        self._complain = complain
        self._system = system
        self._sampling = sampling
        self._as_json = as_json
        self._sleep = sleep
        self._control = Control(client, SOURCE, sleep=sleep)
        self._lines = _lines(source)
        self._read_ahead: deque[bytes] = deque()
        self._reader: threading.Thread | None = None
        self._obeyed = True

    def converse(self) -> bool:
        """Treat each line as a turn of one conversation; returns whether all were answered."""
        session = self._session()
        answered = True
        number = 0
        while (line := self._next_line()) is not None:
            number += 1
            answer = self._steer(line)
            if answer is None:
                answered &= self._answer(number, session, _send(session, line))
            else:
                self._write_answer(answer)
        return answered and self._obeyed

    def converse_each(self, window: int) -> bool:
        """Treat each line as a separate conversation, all at once; returns whether all were
        answered.

        Replies are written in the order of the lines. The first unfinished one is streamed.

        Args:
            window: how many lines may be read ahead of the reply that is being written.
        """
        turns: queue.Queue[tuple[ChatSession, ErrorInfo | None] | Answer | BaseException | None]
        turns = queue.Queue(window)

        def read() -> None:
            try:
                for line in self._lines:
                    if (answer := self._steer(line)) is not None:
                        turns.put(answer)
                        continue
                    session = self._session()
                    turns.put((session, _send(session, line)))
            except Exception as error:
                turns.put(error)
            else:
                turns.put(None)

        # It is a daemon, because it may block on the input forever.
        self._reader = threading.Thread(target=read, name="stdin", daemon=True)
        self._reader.start()
        answered = True
        number = 0
        while (turn := turns.get()) is not None:
            if isinstance(turn, BaseException):
                raise turn
            number += 1
            if isinstance(turn, dict):
                self._write_answer(turn)
            else:
                answered &= self._answer(number, *turn)
        return answered and self._obeyed

    def _session(self) -> ChatSession:
        conversation = Conversation(system=self._system, source=SOURCE)
        return ChatSession(self._client, conversation, sampling=self._sampling)

    def _steer(self, line: bytes) -> Answer | None:
        """Execute a control message, and return the answer; None for a line that goes to the
        model."""
        message = read_control(line) if self._as_json else None
        return None if message is None else self._control.answer(message)

    def _next_line(self) -> bytes | None:
        """The next line of the input; None at its end."""
        return self._read_ahead.popleft() if self._read_ahead else next(self._lines, None)

    def _write_answer(self, answer: Answer) -> None:
        """Write the answer to a control message."""
        # In ASCII, because it may quote text that is invalid Unicode.
        self._write(json.dumps(answer) + "\n")
        self._obeyed &= answer["ok"] is True

    def _answer(self, number: int, session: ChatSession, refusal: ErrorInfo | None) -> bool:
        """Write the reply to line `number` as it comes; returns whether there was one."""
        logprobs: list[OutputToken] = []
        error = refusal or self._stream(session, logprobs)
        while error is not None and error.type == OverloadedError.type:
            self._sleep(RETRY_SECONDS)
            session.regenerate()
            error = self._stream(session, logprobs)
        if self._as_json:
            answer = {"error": asdict(error)} if error else _reply(session.messages[-1], logprobs)
            self._write(json.dumps(answer, ensure_ascii=False) + "\n")
        elif error is not None:
            if not refusal and session.messages[-1].content:
                self._write("\n")
            self._complain(f"line {number}: {error.message}")
        else:
            self._write("\n")
        if error is not None:
            check_engine(self._client)
        return error is None

    def _stream(self, session: ChatSession, logprobs: list[OutputToken]) -> ErrorInfo | None:
        """Wait for the reply to end; returns its error, or None. Text is written as it comes; for
        JSON, `logprobs` are collected."""
        looks = 0
        while session.is_busy:
            if not session.wait(STALL_SECONDS):
                if (status := self._client.status()).has_crashed:
                    return ErrorInfo(UnavailableError.type, status.detail)
                # The first check may read an old snapshot, and makes the engine build a newer one.
                snapshot = self._client.snapshot()
                stalled = snapshot is not None and snapshot.stalled
                looks = looks + 1 if stalled else 0
                if snapshot is not None and looks >= 2 and not self._may_go_on():
                    _end(session)
                    message = f"the request can never run: {in_words(snapshot.head_wait)}"
                    return ErrorInfo(UnavailableError.type, message)
                continue
            delta = session.poll()
            if delta is None:
                continue
            if self._as_json:
                logprobs += delta.logprobs
            elif delta.text:
                self._write(delta.text)
        return session.messages[-1].error

    def _may_go_on(self) -> bool:
        """Whether the rest of the input may restart a stalled engine.

        With lines as separate conversations it may, while they are being read. In one conversation
        this reads one line ahead: a control message is executed, a turn waits.
        """
        if self._reader is not None:
            return self._reader.is_alive()
        if not self._as_json or (line := next(self._lines, None)) is None:
            return False
        answer = self._steer(line)
        if answer is None:
            self._read_ahead.append(line)
        else:
            self._write_answer(answer)
        return True

    def _write(self, text: str) -> None:
        self._sink.write(text.encode())
        self._sink.flush()


def _lines(source: Source) -> Iterator[bytes]:
    """Lines without their ends, each as soon as it is there. A line that is too long is cut, and a
    byte order mark at the start of the input is dropped.
    """
    line, mark = bytearray(), BOM_UTF8
    while chunk := source.read(_CHUNK):
        *ended, rest = chunk.split(b"\n")
        for part in ended:
            line += part
            yield bytes(line.removesuffix(b"\r").removeprefix(mark))
            line.clear()
            mark = b""
        line += rest
        # One byte above the limit stays: it shows that the line is too long.
        del line[MAX_LINE_BYTES + 1 :]
    if line:
        yield bytes(line.removesuffix(b"\r").removeprefix(mark))


def _send(session: ChatSession, line: bytes) -> ErrorInfo | None:
    """Send a line to the model; returns the error if that fails."""
    try:
        session.send(_decode(line))
    except InvalidRequestError as error:
        return error.info()
    return None


def _end(session: ChatSession) -> None:
    """Abandon a reply, so that the session can take another turn."""
    session.stop()
    while session.is_busy:
        session.wait()
        session.poll()


def _decode(line: bytes) -> str:
    if len(line) > MAX_LINE_BYTES:
        raise InvalidRequestError(
            f"the line is longer than the {MAX_LINE_BYTES} bytes that are allowed", "prompt"
        )
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            f"byte {error.start + 1} of the line is 0x{line[error.start]:02x}, which is not valid"
            " UTF-8 there; the input must be UTF-8",
            "prompt",
        ) from None


def _reply(message: Message, logprobs: list[OutputToken]) -> dict[str, object]:
    reply: dict[str, object] = {
        "text": message.content,
        "finish_reason": message.finish_reason,
        "usage": asdict(message.usage) if message.usage else None,
        "timings": _milliseconds(message.timings) if message.timings else None,
    }
    if message.thinking:
        reply["reasoning_content"] = message.thinking
    if message.tool_use is not None:
        reply["tool_calls"] = [call.in_openai_form() for call in message.tool_use.calls]
    if logprobs:
        reply["logprobs"] = [
            {
                **_candidate(token.chosen),
                "rank": token.rank,
                "top_logprobs": [_candidate(candidate) for candidate in token.top],
            }
            for token in logprobs
        ]
    return reply


def _candidate(candidate: Candidate) -> dict[str, object]:
    return {
        "token": candidate.text,
        "id": candidate.token_id,
        "bytes": list(candidate.utf8),
        "logprob": candidate.logprob,
    }


def _milliseconds(timings: Timings) -> dict[str, float | None]:
    names = ("queue", "ttft", "tpot", "e2e", "thinking")
    seconds = {name: getattr(timings, name) for name in names}
    return {f"{n}_ms": None if s is None else round(s * 1000, 3) for n, s in seconds.items()}
