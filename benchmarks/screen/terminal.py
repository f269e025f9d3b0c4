"""Terminal: a program in a pseudo-terminal of its own, whose output somebody reads."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Mapping, Sequence

# A program that is installed has its modules compiled, whatever whoever measures it has set.
_NOT_HANDED_ON = "PYTHONDONTWRITEBYTECODE"
_CHUNK = 1 << 16
_KEPT = 1 << 18


class Terminal:
    """Runs a program on a terminal, and reads what it paints as fast as it comes.

    Args:
        size: columns and lines.
        pass_fds: descriptors that the program inherits.

    Attributes:
        started: monotonic seconds, just before the program was started.
        painted: bytes that came so far.
    """

    def __init__(
        self,
        command: Sequence[str],
        size: tuple[int, int],
        env: Mapping[str, str],
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.painted = 0
        self._recent = bytearray()
        self._came_at = 0.0
        self._news = threading.Condition()
        self._ours, theirs = pty.openpty()
        columns, lines = size
        env = {name: value for name, value in env.items() if name != _NOT_HANDED_ON}
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        try:
            self.started = time.monotonic()
            self.process = subprocess.Popen(
                command,
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
                env={**env, "TERM": "xterm-256color", "COLORTERM": "truecolor"},
                pass_fds=pass_fds,
                start_new_session=True,
            )
        finally:
            os.close(theirs)
        self._reader = threading.Thread(target=self._read, name="terminal", daemon=True)
        self._reader.start()

    def type(self, keys: str) -> None:
        """Send keys, as a terminal does."""
        os.write(self._ours, keys.encode())

    def echo(self, character: str, seconds: float) -> float:
        """Seconds from a key to the character on the screen, where it does not stand yet.

        Raises:
            TimeoutError: it did not come in `seconds`.
        """
        with self._news:
            self._recent.clear()
            start = time.monotonic()
            self.type(character)
            return self.seen_at(character, seconds) - start

    def seen_at(self, text: str, seconds: float) -> float:
        """Monotonic seconds at which a text of one style was painted, now or not long ago.

        Raises:
            TimeoutError: it did not come in `seconds`.
        """
        wanted, deadline = text.encode(), time.monotonic() + seconds
        with self._news:
            while wanted not in self._recent:
                if not self._news.wait(deadline - time.monotonic()):
                    raise TimeoutError(f"{text!r} is not on the screen after {seconds} s")
            return self._came_at

    def close(self) -> None:
        """End the program, if it has not ended."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        os.close(self._ours)

    def _read(self) -> None:
        try:
            while data := os.read(self._ours, _CHUNK):
                with self._news:
                    self.painted += len(data)
                    self._recent += data
                    self._came_at = time.monotonic()
                    del self._recent[:-_KEPT]
                    self._news.notify()
        except OSError:
            pass  # the last program on the terminal has ended
