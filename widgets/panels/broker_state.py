"""BrokerState: the state of the connection to a broker, as a mark and a word."""

from __future__ import annotations

from enum import StrEnum

from widgets.glyphs import Mark


class BrokerState(StrEnum):
    """The state of a connection. The value is the word shown beside the mark."""

    CONNECTING = "connecting"
    ONLINE = "online"
    OFFLINE = "offline"
    TAKEN_OVER = "taken over"
    STOPPED = "stopped"

    @property
    def mark(self) -> Mark:
        return _MARKS[self]


_MARKS = {
    BrokerState.CONNECTING: Mark.PREFILL,
    BrokerState.ONLINE: Mark.DONE,
    BrokerState.OFFLINE: Mark.FAILED,
    BrokerState.TAKEN_OVER: Mark.PREEMPTED,
    BrokerState.STOPPED: Mark.STOPPED,
}
