"""Shelf: the store of files and batches, as the gateway's loop has it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from app.gateway.faults import Fault
from app.store.database import StoreError
from app.store.store import Store

log = logging.getLogger(__name__)

T = TypeVar("T")


class Shelf:
    """Asks the store on a thread of its own, so that the loop waits for no disk. What is asked is
    done in its order.

    The store is opened when it is first asked, and again as long as that fails: who only chats over
    HTTP needs none.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._store: Store | None = None
        self._thread = ThreadPoolExecutor(1, "http-store")
        self._is_closed = False

    async def ask(self, call: Callable[[Store], T]) -> T:
        """What a call gives that gets the store. It is made even if nobody waits for it any more,
        if it has begun.

        Raises:
            Fault: 503 with the sentence of the store, which could not be opened, read or written.
        """
        return await asyncio.wrap_future(self._thread.submit(self._do, call))

    def tell(self, call: Callable[[Store], object]) -> None:
        """Have a call made some time, whatever becomes of who asks; what it raises is logged."""

        def noted() -> None:
            try:
                self._do(call)
            except Fault as fault:
                log.error("%s", fault.message)

        self._thread.submit(noted)

    def close(self) -> None:
        """Close the store when all that was asked is done, and wait for that. Nothing is asked
        afterwards; to close it again does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._thread.submit(self._close)
            self._thread.shutdown()

    def _do(self, call: Callable[[Store], T]) -> T:
        try:
            if self._store is None:
                self._store = Store(self._file)
            return call(self._store)
        except StoreError as error:
            raise Fault(503, str(error), reason="store") from error

    def _close(self) -> None:
        if self._store is not None:
            self._store.close()
