"""Overview: the gateway's state, for the screen."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass

from app.gateway.mqtt.delivery import Delivery
from app.gateway.mqtt.exchanges import Exchanges
from app.gateway.mqtt.node import Node
from app.gateway.mqtt.protocol.topics import Topics
from app.gateway.mqtt.transport.address import BrokerAddress
from app.gateway.mqtt.transport.link import Link
from app.gateway.mqtt.view import MqttView
from app.gateway.tally import Tally
from app.gateway.view import UserView

USERS_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The components of a gateway that its view is made from."""

    address: BrokerAddress
    topics: Topics
    node: Node
    link: Link
    delivery: Delivery
    exchanges: Exchanges
    tally: Tally

    def view(self) -> MqttView:
        """The gateway in its current state."""
        link, tally, state = self.link, self.tally, self.link.state
        return MqttView(
            time=time.monotonic(),
            address=str(self.address),
            pool=self.topics.pool,
            node=self.topics.node,
            phase=state.phase,
            detail=state.detail or self.node.detail,
            since=state.since,
            protocol=state.protocol,
            running=len(self.exchanges),
            waiting=self.exchanges.num_waiting,
            undelivered=len(self.delivery),
            received=link.received,
            published=link.published,
            accepted=tally.accepted,
            finished=tally.finished,
            rejected=tally.rejected,
            first_token=tally.first_tokens,
            bad=tally.bad_messages,
            users=self._users(),
        )

    def _users(self) -> tuple[UserView, ...]:
        running = Counter(exchange.caller.user for exchange in self.exchanges)
        waiting = Counter(e.caller.user for e in self.exchanges if not e.started)
        rejected = self.tally.rejected_by_user
        busiest = sorted({*running, *rejected}, key=lambda user: (-running[user], user))
        return tuple(
            UserView(user, running[user], waiting[user], rejected.get(user, 0))
            for user in busiest[:USERS_SHOWN]
        )
