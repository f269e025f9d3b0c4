"""Wire: frames between the program and an encoder's process.

A frame is 8 bytes of length, big-endian, then the content.
"""

from __future__ import annotations

import os
import select
import time
from typing import BinaryIO

_LENGTH = 8
_CHUNK = 1 << 20


def pack(content: bytes) -> bytes:
    return len(content).to_bytes(_LENGTH, "big") + content


def read_frame(stream: BinaryIO) -> bytes | None:
    """Wait for a frame, in the encoder's process; None if no more will come."""
    head = stream.read(_LENGTH)
    if len(head) < _LENGTH:
        return None
    size = int.from_bytes(head, "big")
    content = stream.read(size)
    return content if len(content) == size else None


class Channel:
    """The program's end of the pipes. No call lasts beyond its deadline.

    Deadlines are times of `time.monotonic`, in seconds.

    Args:
        reader, writer: file descriptors of the pipes.
    """

    def __init__(self, reader: int, writer: int) -> None:
        self._reader = reader
        self._writer = writer
        for descriptor in (reader, writer):
            os.set_blocking(descriptor, False)

    def send(self, content: bytes, deadline: float) -> None:
        """Send a frame.

        Raises:
            TimeoutError: the other end did not read it in time.
            OSError: there is no other end.
        """
        rest = memoryview(pack(content))
        while rest:
            _, ready, _ = select.select([], [self._writer], [], _left(deadline))
            if not ready:
                raise TimeoutError
            rest = rest[os.write(self._writer, rest[:_CHUNK]) :]

    def receive(self, deadline: float) -> bytes:
        """Wait for a frame.

        Raises:
            TimeoutError: it did not come in time.
            EOFError: the other end is gone.
        """
        return self._read(int.from_bytes(self._read(_LENGTH, deadline), "big"), deadline)

    def _read(self, size: int, deadline: float) -> bytes:
        content = bytearray()
        while len(content) < size:
            ready, _, _ = select.select([self._reader], [], [], _left(deadline))
            if not ready:
                raise TimeoutError
            chunk = os.read(self._reader, min(_CHUNK, size - len(content)))
            if not chunk:
                raise EOFError
            content += chunk
        return bytes(content)


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
