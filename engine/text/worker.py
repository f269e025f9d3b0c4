"""Worker: the process that encodes prompts and reads replies, with the model's own code.

`engine.text.process` starts it as `python -m engine.text.worker`. Frames (`engine.text.wire`) come
on standard input: the `sys.path` of the program, a `Start`, then jobs. Each `Start` and job is
answered on standard output. The `Start` gets two empty answers: when the tokenizer has been
unpickled, and when it has been tried. If the tokenizer cannot be used, the answer is the reason
instead, and the process ends. The process also ends when its standard input does.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from engine.text.wire import pack, read_frame

if TYPE_CHECKING:
    from engine.text.job import Job

# The program kills a process that takes too long. If the program is gone, the process ends itself,
# this much later.
_GRACE_SECONDS = 5.0
_START_MEMORY = 1 << 30


def cannot_be_used(reason: str) -> str:
    """The error of a tokenizer that fails before the first job."""
    return f"the model's tokenizer cannot be used: {reason}"


class Start(NamedTuple):
    """The first message to a worker.

    Attributes:
        tokenizer: the pickled tokenizer.
        model_key: the model's `LoadedModel.key`.
        seconds: time limit of each job, to which its text adds (`Job.seconds`).
        begins_thinking: see `ModelEntry.begins_thinking`.
    """

    tokenizer: bytes
    model_key: str
    seconds: float
    begins_thinking: bool


def main() -> None:
    # A signal to the whole group, such as Ctrl-C, is for the program, which may drain.
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    requests = sys.stdin.buffer
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    # Output that libraries print must not count as an answer.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    if (frame := read_frame(requests)) is None:
        return
    sys.path[:] = pickle.loads(frame)
    # transformers' tokenizers need no torch, whose import takes 2.5 s and 180 MB.
    sys.modules["torch"] = None  # type: ignore[assignment]

    # This is nearly all of a process's start time, so do it before the tokenizer comes.
    from transformers import AutoTokenizer, PreTrainedTokenizerFast  # noqa: F401

    from engine.api.errors import EngineError, cause_of
    from engine.text.encoder import ChatEncoder

    if (frame := read_frame(requests)) is None:
        return
    start = Start(*pickle.loads(frame))
    # The collector would search a growing vocabulary again and again: 0.07 s of 0.8 s for 262,144
    # tokens.
    gc.disable()
    try:
        tokenizer = pickle.loads(start.tokenizer)
        _answer(answers, b"")
        with _Bounds(start.seconds, _START_MEMORY):
            encoder = ChatEncoder(tokenizer, start.model_key, begins_thinking=start.begins_thinking)
    except EngineError as error:  # It explains itself.
        _answer(answers, error.message.encode())
        return
    except BaseException as error:
        _answer(answers, cannot_be_used(cause_of(error)).encode())
        return
    gc.freeze()
    gc.enable()
    _answer(answers, b"")
    while (frame := read_frame(requests)) is not None:
        job: Job[Any] = pickle.loads(frame)
        with _Bounds(start.seconds + job.seconds, job.memory + job.stack):
            answer = job.answer(encoder)
        _answer(answers, answer)


def _answer(answers: BinaryIO, content: bytes) -> None:
    answers.write(pack(content))
    answers.flush()


class _Bounds:
    """Limits the time and the memory of its context, if the platform can.

    A signal ends the process when the time is over, and allocations beyond the memory fail. The
    program has its own limit on the time, which works on every platform.

    Args:
        seconds: the time; the signal comes `_GRACE_SECONDS` later.
        memory: bytes beyond those that the process already has.
    """

    def __init__(self, seconds: float, memory: int) -> None:
        self._seconds = seconds
        self._memory = memory

    def __enter__(self) -> None:
        with suppress(OSError):  # Output that a job prints is kept until the next job begins.
            os.ftruncate(sys.stderr.fileno(), 0)
            os.lseek(sys.stderr.fileno(), 0, os.SEEK_SET)
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, self._seconds + _GRACE_SECONDS)
        if sys.platform == "linux":
            with open("/proc/self/statm", encoding="ascii") as statm:
                size = int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            _limit_memory(size + self._memory)

    def __exit__(self, *_: object) -> None:
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)
        if sys.platform == "linux":
            _limit_memory(None)


def _limit_memory(size: int | None) -> None:
    """Make allocations beyond `size` bytes of address space fail; None removes the limit."""
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_AS)
    if size is None or (most != resource.RLIM_INFINITY and most < size):
        size = most
    resource.setrlimit(resource.RLIMIT_AS, (size, most))


if __name__ == "__main__":
    main()
