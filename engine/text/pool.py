"""EncoderPool: the processes that encode prompts and read replies for one model."""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from engine.api.errors import EngineError, ModelError, UnavailableError
from engine.text.job import JOB_SECONDS, Job
from engine.text.process import EncoderProcess, KilledError
from engine.text.worker import Start, cannot_be_used

log = logging.getLogger(__name__)

T = TypeVar("T")

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

    def replace_tokenizer(self, tokenizer: object) -> None:
        """Send another object to later processes, for the same tokenizer."""
        assert self._start is not None
        self._start = self._start._replace(tokenizer=pickle.dumps(tokenizer))

    def run(self, job: Job[T]) -> T:
        """Run a job, and again if its process was killed: most likely the system or an operator did
        that, not the job. A job that crashes its process is not retried.

        Raises:
            InvalidRequestError, UnreadableError, EngineError: see `Encoder.run`.
            ClosedError: the pool was closed.
        """
        try:
            answer = self._run(job)
        except KilledError as error:
            log.warning("%s; another process does what it had to do", error)
            answer = self._run(job)
        return job.read(answer)

    def ready(self) -> None:
        """Wait for the first process.

        Raises:
            ModelError: the tokenizer, or its first use, failed or did not end.
        """
        if self._was_ready:
            return
        # A second one would only take the first one's core, 1.4 s of loading.
        process = self._acquire(most=1)
        try:
            process.ready()
            self._was_ready = True
        except KilledError as error:
            raise ModelError(cannot_be_used(error.words)) from error
        finally:
            self._release(process)

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

    def _run(self, job: Job[Any]) -> bytes:
        process = self._acquire()
        try:
            process.ready()
            self._was_ready = True
            return process.run(job)
        except EngineError as error:
            if self._is_closed:
                raise ClosedError("the model was closed") from error
            raise
        finally:
            self._release(process)

    def _acquire(self, most: int = NUM_PROCESSES) -> EncoderProcess:
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

    def _release(self, process: EncoderProcess) -> None:
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
