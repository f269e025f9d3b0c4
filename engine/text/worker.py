"""Worker: the process that renders and encodes prompts, with the model's own code.

`python -m engine.text.worker`, started by `engine.text.process`. Frames (`engine.text.wire`) come
on standard input: a `Start`, then jobs. Each is answered on standard output; the `Start` twice,
when the tokenizer is there and when it was tried, with nothing or with why it cannot be used. The
process ends with its standard input.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from engine.text.wire import pack, read_frame

if TYPE_CHECKING:
    from engine.text.encoder import ChatEncoder
    from engine.text.job import Job

# The program kills a process that takes too long. This one ends itself where the program is gone.
_GRACE_SECONDS = 5.0
_START_MEMORY = 1 << 30


class Start(NamedTuple):
    """What a worker begins with.

    Attributes:
        path: `sys.path` of the program.
        tokenizer: pickled.
        seconds: base of the time for each job (`engine.text.job`).
    """

    path: list[str]
    tokenizer: bytes
    model_key: str
    seconds: float


def main() -> None:
    # A signal to the whole group, such as Ctrl-C, is for the program, which may drain.
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    requests = sys.stdin.buffer
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no answer
    if (frame := read_frame(requests)) is None:
        return
    start = Start(*pickle.loads(frame))
    sys.path[:] = start.path
    # transformers' tokenizers need no torch, whose import takes 2.5 s and 180 MB.
    sys.modules["torch"] = None  # type: ignore[assignment]

    from engine.api.errors import cause_of
    from engine.text.encoder import ChatEncoder

    try:
        tokenizer = pickle.loads(start.tokenizer)
        _answer(answers, b"")
        with _Bounds(start.seconds, _START_MEMORY):
            encoder = ChatEncoder(tokenizer, start.model_key)
    except BaseException as error:
        _answer(answers, cause_of(error).encode())
        return
    _answer(answers, b"")
    while (frame := read_frame(requests)) is not None:
        job: Job = pickle.loads(frame)
        with _Bounds(start.seconds + job.seconds, job.memory):
            answer = _run(encoder, job)
        _answer(answers, answer)


def _run(encoder: ChatEncoder, job: Job) -> bytes:
    from engine.api.errors import InvalidRequestError, cause_of
    from engine.text.job import MIB, Refusal, pack_ids, pack_refusal

    try:
        if job.common:
            return pack_ids(encoder.common_prefix(job.messages))
        if job.context is not None:
            tail = encoder.encode_after(job.messages, job.context)
            if tail is not None:
                return pack_ids(tail, is_tail=True)
        return pack_ids(encoder.encode(job.messages, None))
    except InvalidRequestError as error:
        refusal = Refusal(error.message, error.param)
    except MemoryError:
        text = (
            f"encoding the prompt needs more than {job.memory // MIB} MiB of memory in the model's "
            "chat template or tokenizer"
        )
        refusal = Refusal(text, "prompt")
    except BaseException as error:  # a panic of tokenizers is no Exception
        refusal = Refusal(f"the prompt could not be read: {cause_of(error)}", "prompt")
    return pack_refusal(refusal)


def _answer(answers: BinaryIO, content: bytes) -> None:
    answers.write(pack(content))
    answers.flush()


class _Bounds:
    """Bounds what is done in its context: by a signal that ends the process, and by failing
    allocations, where the platform has them. The program's own bound on time is there everywhere.

    Args:
        memory: bytes beside those that the process has already.
    """

    def __init__(self, seconds: float, memory: int) -> None:
        self._seconds = seconds
        self._memory = memory

    def __enter__(self) -> None:
        with suppress(OSError):  # Of each job, what it says is kept until the next.
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
    """Let allocations fail beyond so many bytes of address space; None takes the limit away."""
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_AS)
    if size is None or (most != resource.RLIM_INFINITY and most < size):
        size = most
    resource.setrlimit(resource.RLIMIT_AS, (size, most))


if __name__ == "__main__":
    main()
