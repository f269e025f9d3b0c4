"""Asking: the progress of a request of an AskClient."""

from __future__ import annotations

from dataclasses import dataclass

from app.gateway.mqtt.protocol.replies import Reply
from app.gateway.mqtt.protocol.topics import Caller


@dataclass(slots=True)
class Asking:
    """The progress of a request.

    Attributes:
        caller: the caller, with the request's id.
        node: the name of the node that serves it.
        begun: when it began under this id, in seconds of the loop's clock.
        send_at: when it is sent next, in seconds of the loop's clock; None while the server runs
            it.
        attempt: the smallest attempt whose replies count. Replies to earlier ones are void.
        sends: how often the broker accepted it since the last reply to it.
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
