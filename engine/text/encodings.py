"""Encodings: threads that wait for the encoding processes, so that no other thread does."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engine.text.pool import NUM_PROCESSES
from engine.text.turns import Turns

log = logging.getLogger(__name__)

# Fixed cost of each prompt, in bytes of text. About this much text is encoded in the time that it
# takes to send a prompt.
_FIXED_COST = 1024


@dataclass(slots=True, eq=False)
class Encoding:
    """A prompt to encode, or a reply to read.

    Attributes:
        encode: returns the token ids or another result; it blocks, and may raise anything.
        done: called once with the result or error of `encode`, on a thread of `Encodings`.
        is_wanted: whether the result is still wanted. If not, `encode` is not called.
    """

    encode: Callable[[], Any]
    done: Callable[[Any], None]
    is_wanted: bool = True


class Encodings:
    """Encodes prompts, in as many threads as there may be encoding processes.

    Users take turns (`Turns`).
    """

    def __init__(self) -> None:
        self._turns: Turns[Encoding] = Turns()
        self._changed = threading.Condition()
        self._is_closed = False
        for number in range(NUM_PROCESSES):
            name = f"engine-encoding-{number + 1}"
            threading.Thread(target=self._run, name=name, daemon=True).start()

    def put(self, user: str, encoding: Encoding, num_bytes: int) -> None:
        with self._changed:
            self._turns.put(user, encoding, _FIXED_COST + num_bytes)
            self._changed.notify()

    def close(self) -> None:
        """Start no other prompt. Those in progress end with their model, without waiting."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        while (turn := self._next()) is not None:
            user, encoding = turn
            try:
                result = encoding.encode() if encoding.is_wanted else None
            except BaseException as error:  # the model's own code: this ends the request alone
                result = error
            encoding.done(result)
            with self._changed:
                self._turns.end(user)
                self._changed.notify()

    def _next(self) -> tuple[str, Encoding] | None:
        """Wait for the next prompt, and take it; None after `close`."""
        with self._changed:
            while not self._is_closed:
                if (turn := self._turns.pop()) is not None:
                    return turn
                self._changed.wait()
        return None
