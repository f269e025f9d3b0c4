"""Encodings: threads that have prompts encoded, in fair turn, while others do as they do."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from engine.text.pool import NUM_PROCESSES
from engine.text.turns import Turns

log = logging.getLogger(__name__)

# What a prompt costs beside its length, in bytes of text: so many are encoded while it is sent.
_FIXED_COST = 1024


@dataclass(slots=True, eq=False)
class Encoding:
    """A prompt that is to be encoded.

    Attributes:
        encode: blocks, and may raise anything.
        done: called once with the token ids or the error, on a thread of `Encodings`.
    """

    encode: Callable[[], list[int]]
    done: Callable[[list[int] | BaseException], None]
    is_wanted: bool = True


class Encodings:
    """As many threads as there may be processes that encode. Users take turns (`Turns`)."""

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
        """Begin no other. Those that have begun end with their model; nobody waits for them."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        while (turn := self._next()) is not None:
            user, encoding = turn
            result: list[int] | BaseException
            try:
                result = encoding.encode() if encoding.is_wanted else []
            except BaseException as error:  # it is the model's code, and the request's end
                result = error
            encoding.done(result)
            with self._changed:
                self._turns.end(user)
                self._changed.notify()

    def _next(self) -> tuple[str, Encoding] | None:
        """The prompt whose turn it is; waits for one. None after `close`."""
        with self._changed:
            while not self._is_closed:
                if (turn := self._turns.take()) is not None:
                    return turn
                self._changed.wait()
        return None
