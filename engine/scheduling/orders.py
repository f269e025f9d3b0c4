"""The queue orders, by name."""

from __future__ import annotations

from engine.api.knobs import Knobs
from engine.scheduling.fair import Fair
from engine.scheduling.queue import Fcfs, Priority, Shortest, WaitingQueue

ORDERS: dict[str, type[WaitingQueue]] = {
    order.name: order for order in (Priority, Fcfs, Shortest, Fair)
}


def reorder(knobs: Knobs, before: WaitingQueue) -> WaitingQueue:
    """Make the queue that the knobs ask for, with all requests of the previous one."""
    queue = ORDERS[knobs.order](knobs)
    # Requests are pushed by arrival, so that a fair order meets its users in that order.
    for request in sorted(before, key=lambda request: request.ordinal):
        queue.push(request)
    if isinstance(queue, Fair) and isinstance(before, Fair):
        queue.resume(before)
    return queue
