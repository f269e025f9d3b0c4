"""SocketPump: reads and writes paho's socket on the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from paho.mqtt.client import CallbackOnPublish_v2, MQTTMessageInfo
from paho.mqtt.client import Client as PahoClient
from paho.mqtt.enums import MQTTErrorCode

log = logging.getLogger(__name__)

_TICK_SECONDS = 0.5


class SocketPump:
    """Replaces paho's own loop, through paho's callbacks for other event loops.

    It tries to write once in each turn of the loop, without registering each message with the
    selector: so a publish of QoS 0 takes 9 us of CPU (18 if it is alone in its turn), and not the
    120 to 240 of aiomqtt.

    Args:
        paho: the client whose socket it is.
        confirmed: called as paho's `on_publish`, for PUBACKs only.
        has_read: called after each read.
        ticked: called twice a second while there is a socket.
        cannot_read: called when the broker sent something that paho cannot parse.

    Attributes:
        unwritten: publishes of QoS 0 that did not fit into the socket's buffer. The publisher
            appends to them.
    """

    def __init__(
        self,
        paho: PahoClient,
        *,
        confirmed: CallbackOnPublish_v2,
        has_read: Callable[[], None],
        ticked: Callable[[], None],
        cannot_read: Callable[[], None],
    ) -> None:
        self.unwritten: deque[MQTTMessageInfo] = deque()
        self._paho = paho
        self._confirmed = confirmed
        self._has_read = has_read
        self._ticked = ticked
        self._cannot_read = cannot_read
        self._loop = asyncio.get_running_loop()
        self._ticking: asyncio.Task[None] | None = None
        self._is_writing = False
        self._is_stopped = False
        paho.on_publish = None  # except while reading
        paho.on_socket_open = self._on_open
        paho.on_socket_close = self._on_close
        paho.on_socket_register_write = self._on_register_write
        paho.on_socket_unregister_write = self._on_unregister_write

    def stop(self) -> None:
        """Stop writing. The socket stays open, because paho may hold a lock that closing takes."""
        self._is_stopped = True
        self.unwritten.clear()

    def forget(self, sock: Any) -> None:
        """Unregister a socket from the loop. Call this before the socket is closed, while it still
        has a file descriptor."""
        if sock.fileno() >= 0:
            self._loop.remove_reader(sock.fileno())
            self._loop.remove_writer(sock.fileno())
        self._is_writing = False
        if self._ticking is not None:
            self._ticking.cancel()

    async def _tick(self) -> None:
        while self._paho.loop_misc() == MQTTErrorCode.MQTT_ERR_SUCCESS:
            self._ticked()
            await asyncio.sleep(_TICK_SECONDS)

    def _on_open(self, _client: PahoClient, _userdata: Any, sock: Any) -> None:
        # At once, and not a turn of the loop later as aiomqtt does: by then the socket may be
        # closed.
        self._loop.add_reader(sock.fileno(), self._read)
        self._ticking = self._loop.create_task(self._tick())

    def _on_close(self, _client: PahoClient, _userdata: Any, sock: Any) -> None:
        self.forget(sock)

    def _read(self) -> None:
        paho = self._paho
        # PUBACKs come while reading. At other times paho would call this for each written publish
        # of QoS 0, and make a reason code for it: 10 of 19 us of CPU.
        paho.on_publish = self._confirmed
        try:
            paho.loop_read()
            # The selector does not see data that TLS has decrypted already.
            while (pending := getattr(paho.socket(), "pending", None)) and pending():
                paho.loop_read()
        except Exception:
            # paho may raise anything at a packet that it cannot parse.
            log.debug("a packet of the broker cannot be read", exc_info=True)
            self._cannot_read()
        finally:
            paho.on_publish = None
        self._has_read()

    def _on_register_write(self, _client: PahoClient, _userdata: Any, _sock: Any) -> None:
        # Not at once: paho holds a lock while it calls this, and writing takes that lock too.
        self._loop.call_soon(self._write)

    def _on_unregister_write(self, _client: PahoClient, _userdata: Any, sock: Any) -> None:
        if self._is_writing:
            self._is_writing = False
            self._loop.remove_writer(sock.fileno())

    def _write(self) -> None:
        if self._is_stopped:
            return
        self._paho.loop_write()
        if not self._paho.want_write():
            self.unwritten.clear()
            return
        while self.unwritten and self.unwritten[0].is_published():
            self.unwritten.popleft()
        sock = self._paho.socket()
        if sock is not None and not self._is_writing:
            self._is_writing = True
            self._loop.add_writer(sock.fileno(), self._write)
