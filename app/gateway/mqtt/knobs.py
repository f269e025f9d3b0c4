"""KnobsTopic: publishes the live knobs on the broker, and executes messages that change them."""

from __future__ import annotations

import asyncio
import json

from app.gateway.control import Answer, Control, knob_state, refusal
from app.gateway.mqtt.protocol.topics import Topics
from app.gateway.mqtt.transport.link import Inbound, Link, Outgoing
from app.gateway.sources import MQTT
from engine.api.client import EngineClient
from engine.api.errors import ErrorInfo, InvalidRequestError
from engine.api.snapshot import Snapshot

# All knobs at once take 2 KiB, and the one that is a long text 48 KiB more if it is all escapes.
MAX_BYTES = 1 << 16


class KnobsTopic:
    """The knobs on the broker. The broker's access list says who may change them."""

    def __init__(self, client: EngineClient, topics: Topics) -> None:
        self._topics = topics
        self._control = Control(client, MQTT)
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._published: tuple[object, object] | None = None

    def update(self, snapshot: Snapshot | None, link: Link) -> None:
        """Publish the state of the knobs, if it has changed."""
        if snapshot is None:
            return
        state = (snapshot.knobs, snapshot.knob_history)
        if state != self._published and link.send(self._message(snapshot)):
            self._published = state

    def forget(self) -> None:
        """Publish the knobs again at the next `update`: a newly connected broker may not have
        them."""
        self._published = None

    def obey(self, message: Inbound, link: Link) -> None:
        """Execute a message after those before it, and publish the outcome."""
        task = asyncio.get_running_loop().create_task(self._obey(message, link))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _obey(self, message: Inbound, link: Link) -> None:
        async with self._turn:
            answer = await self._answer(message)
            message.ack()
            payload = _dump(answer)
            link.send(Outgoing(self._topics.knobs_result, payload, correlation=message.correlation))

    async def _answer(self, message: Inbound) -> Answer:
        if message.retained:
            # A retained message would change the knobs again at every start.
            return _refuse("the message is retained; it must not be")
        if (size := len(message.payload)) > MAX_BYTES:
            return _refuse(f"the message has {size} bytes; at most {MAX_BYTES} are allowed")
        try:
            order = json.loads(message.payload)
        except (ValueError, RecursionError):
            return _refuse("the message cannot be read as JSON; it must be an object")
        # On a thread, because this waits until the engine has applied the change.
        return await asyncio.to_thread(self._control.answer, order)

    def _message(self, snapshot: Snapshot) -> Outgoing:
        return Outgoing(self._topics.knobs, _dump(knob_state(snapshot)), retain=True)


def _refuse(message: str) -> Answer:
    return refusal(ErrorInfo(InvalidRequestError.type, message))


def _dump(answer: Answer) -> bytes:
    # In ASCII, because it may quote text that is invalid Unicode.
    return json.dumps({"v": 1, **answer}).encode()
