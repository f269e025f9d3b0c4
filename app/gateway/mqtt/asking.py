"""Asking: how far a request of an AskClient has come."""

from __future__ import annotations

from dataclasses import dataclass

from app.gateway.mqtt.protocol.replies import Reply
from app.gateway.mqtt.protocol.topics import Caller


@dataclass(slots=True)
class Asking:
    """How far a request has come.

    Attributes:
        caller: who asks, and the request's id.
        node: the name of the node that serves it.
        begun: when it began under this id, in seconds of the loop's clock.
        send_at: when it is sent next, in seconds of the loop's clock; None while the server runs
            it.
        attempt: the smallest attempt whose replies count. Replies of earlier ones are void.
        sends: how often the broker took it since a reply to it last came.
        refusals: how often it was refused in a row.
        is_known: whether the server has accepted it at least once.
    """

    caller: Caller
    node: str
    begun: float
    send_at: float | None
    attempt: int = 1
    sends: int = 0
    refusals: int = 0
    is_known: bool = False

    def counts(self, reply: Reply) -> bool:
        """Whether a reply is to this request and not to an attempt that is void."""
        return reply.request_id == self.caller.request_id and (
            reply.attempt is None or reply.attempt >= self.attempt
        )
