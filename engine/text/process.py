"""EncoderProcess: the program's handle of one process that encodes prompts and reads replies."""

from __future__ import annotations

import logging
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from engine.api.errors import EngineError, ModelError
from engine.text.job import Job
from engine.text.wire import Channel
from engine.text.worker import Start, cannot_be_used

log = logging.getLogger(__name__)

# Importing transformers takes 1.5 s, and several times that on a busy machine or a slow disk.
START_SECONDS = 60.0
_TAIL_BYTES = 2000
_WORKER = (sys.executable, "-P", "-m", "engine.text.worker")
# Signals by which a process ends through its own actions. Others come from the system or a person.
_OWN_SIGNALS = frozenset(("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV"))
_ENVIRONMENT = {
    # One prompt at a time needs no threads, whose stacks and arenas would count as memory.
    "TOKENIZERS_PARALLELISM": "false",
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
    "RUST_BACKTRACE": "0",
}

# Variables that hold secrets, by their names or as the password in an address. The process runs a
# model's own code on text from strangers.
_SECRET_NAME = re.compile("TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|API_?KEY|_KEY$")
_SECRET_VALUE = re.compile("://[^/@]*@")


class KilledError(EngineError):
    """The process was killed: by the system, an operator, or the code that it ran.

    Args:
        words: its last words.
    """

    def __init__(self, words: str) -> None:
        super().__init__(f"the process that encodes prompts ended: {words}")
        self.words = words


class _LastWords(NamedTuple):
    """Why a process ended, as far as it reported.

    Attributes:
        text: the end of its standard error.
        code: exit code, as `subprocess` reports it.
    """

    text: str
    code: int

    @property
    def signal(self) -> str:
        """The name of the signal that ended it; empty if there was none."""
        return signal.Signals(-self.code).name if self.code < 0 else ""

    def __str__(self) -> str:
        end = self.signal or f"exit code {self.code}"
        line = self.text.rpartition("\n")[2]
        return f"{line} ({end})" if line else end


class EncoderProcess:
    """Starts a process. For one thread at a time, except `kill`.

    Attributes:
        is_ready: whether `ready` has returned.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self) -> None:
        self._sending: threading.Thread | None = None
        self._seconds = 0.0
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
        self._process = subprocess.Popen(
            _WORKER,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            bufsize=0,
            env=without_secrets(os.environ) | _ENVIRONMENT,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._channel = Channel(self._process.stdout.fileno(), self._process.stdin.fileno())
        self.is_ready = False
        self._send(list(sys.path))

    def begin(self, start: Start) -> None:
        """Send a tokenizer. Until then the process imports its modules.

        The pipe holds 64 KB, so another thread sends it: loading would otherwise wait for the
        imports, 0.2 s for the smallest model.
        """
        self._seconds = start.seconds
        self._sending = threading.Thread(target=self._send, args=(tuple(start),), daemon=True)
        self._sending.start()

    def _send(self, content: object) -> None:
        try:
            self._channel.send(pickle.dumps(content), time.monotonic() + START_SECONDS)
        except OSError:
            self.kill()  # `ready` reports it

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def ready(self) -> None:
        """Wait until the process accepts jobs; this does not count as their time.

        Raises:
            ModelError: the tokenizer, or its first use, failed or did not end.
            KilledError: the process was killed.
        """
        if self.is_ready:
            return
        what = "the process that encodes prompts did not start"
        try:
            trouble = self._channel.receive(time.monotonic() + START_SECONDS)
            if not trouble:
                what = "the model's chat template or tokenizer did not finish"
                trouble = self._channel.receive(time.monotonic() + self._seconds)
        except TimeoutError:
            self.kill()
            raise ModelError(what) from None
        except (EOFError, OSError):
            words = self._last_words()
            if words.signal == "SIGKILL":
                raise KilledError(str(words)) from None
            trouble = cannot_be_used(str(words)).encode()
        if trouble:
            self.kill()
            raise ModelError(trouble.decode())
        self.is_ready = True

    def run(self, job: Job[Any]) -> bytes:
        """Run a job; returns the answer. After an error, the process has ended.

        Raises:
            InvalidRequestError: it takes too much time or memory, or crashes the process.
            EngineError: the process ended; a KilledError if it was killed.
        """
        seconds = self._seconds + job.seconds
        deadline = time.monotonic() + seconds
        try:
            self._channel.send(pickle.dumps(job), deadline)
            return self._channel.receive(deadline)
        except TimeoutError:
            self.kill()
            raise job.late(seconds) from None
        except (EOFError, OSError):
            words = self._last_words()
            if "memory allocation" in words.text:
                raise job.greedy() from None
            if words.signal in _OWN_SIGNALS:
                # The job is at fault, and would crash every process that it is sent to.
                raise job.fatal(str(words)) from None
            if words.signal == "SIGKILL":
                raise KilledError(str(words)) from None
            raise EngineError(f"the process that encodes prompts ended: {words}") from None

    def kill(self) -> None:
        """End the process at once; a thread that waits for an answer gets an error."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End the process, and close its files here."""
        self.kill()
        if self._sending is not None:
            self._sending.join()
        for stream in (self._process.stdin, self._process.stdout, self._said):
            if stream is not None:
                stream.close()

    def _last_words(self) -> _LastWords:
        """Why the process ended, as far as it reported."""
        with suppress(subprocess.TimeoutExpired):  # It has closed its end, and is about to exit.
            self._process.wait(1.0)
        self.kill()
        self._said.seek(max(0, self._said.seek(0, os.SEEK_END) - _TAIL_BYTES))
        words = self._said.read().decode(errors="replace").strip()
        if words:
            log.error("a process that encoded prompts ended; its last output was: %s", words)
        code = self._process.returncode
        return _LastWords(words, code)


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Remove keys, tokens and passwords from an environment."""
    return {
        name: value
        for name, value in environment.items()
        if not (_SECRET_NAME.search(name.upper()) or _SECRET_VALUE.search(value))
    }
