"""Node: publishes this server's card and its figures on the broker."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from typing import Literal

from app.gateway.mqtt.exchange import milliseconds
from app.gateway.mqtt.protocol.cards import (
    Limits,
    Metrics,
    ModelInfo,
    MqttMetrics,
    NodeCard,
    Percentiles,
)
from app.gateway.mqtt.protocol.topics import Topics
from app.gateway.mqtt.settings import MqttSettings
from app.gateway.mqtt.transport.link import Link, Outgoing
from app.system.versions import version
from engine.api.knobs import Knobs
from engine.api.snapshot import Snapshot
from engine.api.telemetry import Distribution

log = logging.getLogger(__name__)


class Node:
    """Publishes the card when it changes, and the figures at each `update`.

    One node serves a pool: the one that has been connected longest. The others stand by. Every node
    gets each request, so if two answered, a request would have two endings.

    Args:
        figures: returns the gateway's figures, for the metrics.
        clock: seconds since the epoch.

    Attributes:
        boot_id: identifies this start of the program.
        queue_limit: the engine's knob of this name, as of the last `update`.
        closing: whether the server is shutting down.
        elder: the node that serves the pool while this one stands by; empty if this one serves.
        first_attempt: the number of a request's first attempt on this node. It is 1, unless another
            node may have served the pool before. Then it is the time in milliseconds since the
            epoch, which is greater than the attempts of all other nodes. So no two nodes end the
            same attempt, though each has its own journal. Nodes of one name share one card, and so
            must share one journal.
    """

    def __init__(
        self,
        settings: MqttSettings,
        topics: Topics,
        figures: Callable[[], MqttMetrics],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._figures = figures
        self._clock = clock
        self._version = version("batchdeck")
        self.boot_id = uuid.uuid4().hex
        self.queue_limit = Knobs().queue_limit
        self.closing = False
        self.elder = ""
        self.first_attempt = 1
        self._others: dict[str, NodeCard] = {}
        self._engine_drains = False
        self._model: ModelInfo | None = None
        self._since = clock()
        self._card = self._describe()
        self._output: tuple[float, int] | None = None

    @property
    def draining(self) -> bool:
        """Whether it accepts nothing new."""
        return self.closing or self._engine_drains

    @property
    def detail(self) -> str:
        """A remark for the screen; empty if all is normal."""
        return f"{self.elder} serves the pool; this node stands by" if self.elder else ""

    @property
    def card(self) -> Outgoing:
        """The message with this node's card."""
        return self._publish(self._card)

    @property
    def farewell(self) -> Outgoing:
        """The message that this node is gone. It is both its last message and its will."""
        return self._publish(self._card.model_copy(update={"state": "offline"}))

    def join(self) -> Outgoing:
        """Become the youngest node of the pool, at each connect; returns the card. Another node may
        have answered meanwhile, and then this node must not answer the requests that the broker has
        queued for it."""
        self._since = self._clock()
        self._elect()
        self._card = self._describe()
        return self.card

    def leave(self) -> None:
        """Forget the other nodes after a disconnect. The next connection lists those that are
        there."""
        self._others.clear()

    def hear(self, topic: str, payload: bytes, link: Link) -> None:
        """Process the card of another node of the pool, from that node or from its will."""
        if topic == self._topics.status:
            return
        try:
            card = NodeCard.model_validate_json(payload) if payload else None
        except ValueError:
            return
        # None: an operator has removed the card of a node that could not disconnect cleanly.
        if card is None or card.state == "offline":
            self._others.pop(topic, None)
        else:
            self._others[topic] = card
        if card is not None and card.since < self._since:
            self._count_anew()
        if self._elect():
            self.announce(link)

    def update(self, snapshot: Snapshot | None, link: Link) -> None:
        """Process the engine's state, and publish the metrics and, if it has changed, the card."""
        if snapshot is not None:
            knobs = {state.name: state.effective for state in snapshot.knobs}
            self._engine_drains = bool(knobs["draining"])
            self.queue_limit = int(knobs["queue_limit"])
            model = snapshot.model
            self._model = ModelInfo(
                name=model.name,
                max_model_len=model.max_model_len,
                dtype=model.dtype,
                quantize=model.quantize,
                device=model.device,
                has_chat_template=model.has_chat_template,
            )
        else:
            self._model = None
            self._engine_drains = False
        self.announce(link)
        link.send(Outgoing(self._topics.metrics, self._metrics(snapshot).encode(), qos=0))

    def announce(self, link: Link) -> None:
        """Publish the card if it has changed."""
        card = self._describe()
        if card != self._card:
            self._card = card
            link.send(self.card)

    def _elect(self) -> bool:
        """Find which node serves the pool; returns whether it has changed."""
        mine = (self._since, self.boot_id)
        elders = [
            (card.since, card.boot_id, topic)
            for topic, card in self._others.items()
            if (card.since, card.boot_id) < mine
        ]
        elder = self._topics.node_of(min(elders)[2]) if elders else ""
        if elder == self.elder:
            return False
        self.elder = elder
        self._count_anew()
        log.warning("%s", self.detail or "this node serves the pool now")
        return True

    def _count_anew(self) -> None:
        self.first_attempt = max(self.first_attempt, int(self._clock() * 1000.0))

    def _describe(self) -> NodeCard:
        settings = self._settings
        return NodeCard(
            node=self._topics.node,
            pool=self._topics.pool,
            boot_id=self.boot_id,
            state=self._state(),
            model=self._model,
            limits=Limits(
                max_request_bytes=settings.max_request_bytes,
                max_requests=settings.max_requests,
                user_requests=settings.quota.requests,
                user_per_minute=settings.quota.per_minute,
            ),
            version=self._version,
            since=self._since,
        )

    def _state(self) -> Literal["online", "standby", "draining"]:
        if self.elder:
            return "standby"
        return "draining" if self.draining else "online"

    def _publish(self, card: NodeCard) -> Outgoing:
        return Outgoing(self._topics.status, card.encode(), retain=True)

    def _metrics(self, snapshot: Snapshot | None) -> Metrics:
        latency = snapshot.latency if snapshot else None
        return Metrics(
            node=self._topics.node,
            boot_id=self.boot_id,
            time=self._clock(),
            running=snapshot.num_running if snapshot else None,
            waiting=snapshot.num_waiting if snapshot else None,
            kv_used=snapshot.blocks.used if snapshot else None,
            kv_total=snapshot.blocks.num_blocks if snapshot else None,
            tokens_per_second=self._rate(snapshot),
            ttft_ms=percentiles(latency.ttft if latency else None),
            tpot_ms=percentiles(latency.tpot if latency else None),
            mqtt=self._figures(),
        )

    def _rate(self, snapshot: Snapshot | None) -> float | None:
        """Output tokens a second since the previous call; None if not known."""
        before = self._output
        self._output = None
        if snapshot is None:
            return None
        now, tokens = snapshot.time, snapshot.totals.output_tokens
        self._output = now, tokens
        # The snapshot of an idle engine keeps its time, and another model counts from 0.
        if before is None or now <= before[0] or tokens < before[1]:
            return 0.0 if before is not None and now == before[0] else None
        return round((tokens - before[1]) / (now - before[0]), 3)


def percentiles(of: Distribution | None) -> Percentiles:
    """A distribution of seconds as percentiles in milliseconds."""
    if of is None:
        return Percentiles(p50=None, p99=None)
    return Percentiles(p50=milliseconds(of.p50), p99=milliseconds(of.p99))
