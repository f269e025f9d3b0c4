"""Proxied: a TcpProxy on a thread of its own, for tests without an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.tcp_proxy import TcpProxy


class Proxied:
    """
    Attributes:
        proxy: to read; told what to do by `do`.
    """

    def __init__(self, proxy: TcpProxy, loop: asyncio.AbstractEventLoop) -> None:
        self.proxy = proxy
        self.port = proxy.port
        self._loop = loop

    def do(self, method: Callable[..., None], *args: Any) -> None:
        """Call a method of the proxy on its loop, and wait until it has returned."""

        async def call() -> None:
            method(*args)

        asyncio.run_coroutine_threadsafe(call(), self._loop).result()


@contextmanager
def proxied(target: int) -> Iterator[Proxied]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    proxy = TcpProxy(target)
    asyncio.run_coroutine_threadsafe(proxy.__aenter__(), loop).result()
    try:
        yield Proxied(proxy, loop)
    finally:
        asyncio.run_coroutine_threadsafe(proxy.__aexit__(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
