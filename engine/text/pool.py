"""EncoderPool: the processes that encode prompts and read replies for one model."""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from engine.api.client import ChatMessage
from engine.api.errors import EngineError, ModelError, UnavailableError
from engine.api.stream import Context
from engine.api.structure import Structure
from engine.api.tools import ToolUse
from engine.structure.lead import Lead
from engine.text.arguments import NO_ARGUMENTS
from engine.text.job import (
    JOB_SECONDS,
    BegunJob,
    EndsJob,
    Job,
    OpeningsJob,
    PromptJob,
    ReplyJob,
    StructureJob,
    TextJob,
    WordsJob,
    read_answer,
    read_openings,
    read_rules,
    read_use,
    read_words,
)
from engine.text.openings import Openings
from engine.text.process import EncoderProcess, KilledError
from engine.text.worker import Start

log = logging.getLogger(__name__)

# A second process serves others while the first is stuck or has long prompts. Each has 70 MB beside
# its tokenizer. It starts in 2 to 3 s of a core, most of it the import of transformers.
NUM_PROCESSES = 2
# A prompt waits this long before the second process is started: most take less than 1 ms, and one
# process serves a crowd of simultaneous users before another could have started.
PATIENCE_SECONDS = 0.25


class ClosedError(UnavailableError):
    """The model was closed."""


class EncoderPool:
    """Encodes chats in separate processes (`ChatEncoder` runs there), from any thread.

    A chat template and a tokenizer are the model's own code, run on text from strangers: they may
    panic, never return, or use up all memory. Here that ends the request at fault, and costs the
    others at most the wait for another process. It also keeps them from the interpreter's lock.

    The first process starts at once, because it imports for 0.5 to 1.5 s before it can use a
    tokenizer. Call `begin` before submitting jobs.
    """

    def __init__(self) -> None:
        self._start: Start | None = None
        self._changed = threading.Condition()
        self._idle: list[EncoderProcess] = []
        self._busy: set[EncoderProcess] = set()
        self._is_closed = False
        self._was_ready = False
        self._add()

    def begin(
        self,
        tokenizer: object,
        model_key: str,
        seconds: float = JOB_SECONDS,
        *,
        begins_thinking: bool = False,
    ) -> None:
        """Send the tokenizer to the processes; once.

        Args:
            tokenizer: a tokenizer of transformers, or an object that becomes one when it has been
                pickled and unpickled.
            model_key: the model's `LoadedModel.key`.
            seconds: time limit of each job, to which the length of its text adds.
            begins_thinking: see `ModelEntry.begins_thinking`.
        """
        self._start = Start(pickle.dumps(tokenizer), model_key, seconds, begins_thinking)
        for process in self._idle:
            process.begin(self._start)

    def keep(self, tokenizer: object) -> None:
        """Keep the tokenizer for later processes, which would read it from its files otherwise."""
        assert self._start is not None
        self._start = self._start._replace(tokenizer=pickle.dumps(tokenizer))

    def encode(
        self,
        messages: Sequence[ChatMessage],
        context: Context | None,
        arguments: Mapping[str, object] = NO_ARGUMENTS,
    ) -> list[int]:
        """See `ChatEncoder.encode`; blocks.

        Raises:
            InvalidRequestError: as there; or it takes too much time or memory.
            EngineError: the process ended, or none can be started.
            ClosedError: the pool was closed.
        """
        last = context and replace(context, token_ids=context.token_ids[-1:])
        job = PromptJob(tuple(messages), last, arguments=dict(arguments))
        return read_answer(self._run(job), context)

    def common_prefix(
        self, messages: Sequence[ChatMessage], arguments: Mapping[str, object] = NO_ARGUMENTS
    ) -> list[int]:
        """See `ChatEncoder.common_prefix`; blocks, and raises as `encode`."""
        job = PromptJob(tuple(messages), common=True, arguments=dict(arguments))
        return read_answer(self._run(job), None)

    def encode_text(self, text: str, *, is_whole: bool) -> list[int]:
        """See `ChatEncoder.encode_text`; blocks, and raises as `encode`."""
        return read_answer(self._run(TextJob(text, is_whole)), None)

    def encode_begun(self, reply: ChatMessage, *, is_open: bool) -> list[int]:
        """See `ChatEncoder.encode_begun`; blocks, and raises as `encode`."""
        return read_answer(self._run(BegunJob(reply, is_open)), None)

    def read_calls(
        self,
        prompt: Sequence[int],
        reply: Sequence[int],
        tools: Sequence[Mapping[str, object]],
        *,
        is_open: bool,
    ) -> ToolUse | None:
        """See `engine.text.calls.read_calls`; blocks.

        Raises:
            UnreadableError: `read_calls` raised.
            EngineError: as `encode`.
        """
        return read_use(self._run(ReplyJob(tuple(prompt), tuple(reply), tuple(tools), is_open)))

    def openings(self) -> Openings:
        """See `ChatEncoder.openings`; blocks, and raises as `encode`."""
        return read_openings(self._run(OpeningsJob()))

    def turn_ends(self) -> list[int]:
        """See `ChatEncoder.turn_ends`; blocks, and raises as `encode`."""
        return read_answer(self._run(EndsJob()), None)

    def words(self) -> list[bytes]:
        """See `ChatEncoder.words`; blocks, and raises as `encode`."""
        return read_words(self._run(WordsJob()))

    def try_structure(
        self, structure: Structure, lead: Lead, ends: Sequence[int], size: int
    ) -> str:
        """See `ChatEncoder.try_structure`; blocks, and raises as `encode`."""
        return read_rules(self._run(StructureJob(structure, lead, tuple(ends), size)))

    def ready(self) -> None:
        """Wait for the first process.

        Raises:
            ModelError: the tokenizer, or its first use, failed or did not end.
        """
        if self._was_ready:
            return
        # A second one would only take the first one's core, 1.4 s of loading.
        process = self._take(most=1)
        try:
            process.ready()
            self._was_ready = True
        except KilledError as error:
            raise ModelError(f"the model's tokenizer cannot be used: {error.words}") from error
        finally:
            self._give_back(process)

    def start_spare(self) -> None:
        """Start a second process if there is one so far; does not wait for it."""
        with self._changed:
            if not self._is_closed and len(self._idle) + len(self._busy) == 1:
                self._add()
                self._changed.notify_all()

    def close(self) -> None:
        """End the processes; a second call is ignored."""
        with self._changed:
            self._is_closed = True
            idle, self._idle = self._idle, []
            busy = list(self._busy)
            self._changed.notify_all()
        for process in busy:
            process.kill()  # the thread that waits for it closes it
        for process in idle:
            process.close()

    def _run(self, job: Job) -> bytes:
        """Run a job, and again if its process was killed: most likely the system or an operator did
        that, not the job. A job that crashes its process is not retried.
        """
        try:
            return self._run_once(job)
        except KilledError as error:
            log.warning("%s; another process does what it had to do", error)
            return self._run_once(job)

    def _run_once(self, job: Job) -> bytes:
        process = self._take()
        try:
            process.ready()
            self._was_ready = True
            return process.run(job)
        except EngineError as error:
            if self._is_closed:
                raise ClosedError("the model was closed") from error
            raise
        finally:
            self._give_back(process)

    def _take(self, most: int = NUM_PROCESSES) -> EncoderProcess:
        has_waited = False
        with self._changed:
            while not self._is_closed:
                if self._idle:
                    process = min(self._idle, key=lambda one: not one.is_ready)
                    self._idle.remove(process)
                    if process.has_ended and self._was_ready:
                        process.close()  # The system killed it, and no prompt is at fault.
                        continue
                    self._busy.add(process)
                    return process
                if len(self._busy) >= most:
                    self._changed.wait()
                    continue
                if self._busy and not has_waited:
                    has_waited = not self._changed.wait(PATIENCE_SECONDS)
                    continue
                self._add()
                if not self._idle:
                    raise EngineError("no process that encodes prompts can be started")
        raise ClosedError("the model was closed")

    def _give_back(self, process: EncoderProcess) -> None:
        with self._changed:
            self._busy.remove(process)
            if self._is_closed or process.has_ended:
                process.close()
            else:
                self._idle.append(process)
            if self._was_ready and not (self._is_closed or self._idle or self._busy):
                self._add()  # Now, and not only when a prompt waits for it.
            self._changed.notify_all()

    def _add(self) -> None:
        try:
            process = EncoderProcess()
        except OSError as error:
            log.error("a process that encodes prompts cannot be started: %s", error)
            return
        if self._start is not None:
            process.begin(self._start)
        self._idle.append(process)


@contextmanager
def encoding() -> Iterator[EncoderPool]:
    """A pool that starts in the context and is ready at its end; closed after an error."""
    pool = EncoderPool()
    try:
        yield pool
        pool.ready()
    except BaseException:
        pool.close()
        raise
