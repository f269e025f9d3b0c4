"""Part D: CPU time of the gateway's thread for a request while the engine is paused."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from app.gateway.mqtt.view import MqttView
from app.gateway.quotas import Quota
from benchmarks.figure import Figure
from benchmarks.mqtt.bench import LEAD_SECONDS, Bench, request
from benchmarks.paced import WAIT_SECONDS, wait_for
from benchmarks.usage import Usage

# The journal has who was told a little after they were.
SETTLE_SECONDS = 0.5
SPACED, SPACE_SECONDS, AT_ONCE, IDLE_SECONDS = 200, 0.01, 500, 2.0


def journal(bench: Bench) -> Iterator[Figure]:
    room = Quota(requests=SPACED + AT_ONCE)
    with bench.gateway(quota=room) as gateway:
        bench.host.set_knobs({"paused": True}, "benchmark")
        before = Usage.now(bench.broker.process)
        time.sleep(IDLE_SECONDS)
        used = Usage.now(bench.broker.process) - before
        idle = used.threads["mqtt"] / used.time

        def cost(until: Callable[[], object], what: str, count: int) -> float:
            """Milliseconds a request of the gateway's thread, less what it takes when idle."""
            before = Usage.now(bench.broker.process)
            wait_for(until, what)
            time.sleep(SETTLE_SECONDS)
            used = Usage.now(bench.broker.process) - before
            return 1000 * (used.threads["mqtt"] - idle * used.time) / count

        now = time.monotonic()
        burst_at = now + SPACED * SPACE_SECONDS + LEAD_SECONDS
        asks = [request(i, "spaced", 1, now + i * SPACE_SECONDS) for i in range(SPACED)]
        asks += [request(i, "at-once", 1, burst_at) for i in range(AT_ONCE)]
        bench.askers.ask(asks, WAIT_SECONDS)
        spaced = cost(lambda: gateway.view().accepted == SPACED, "accepted", SPACED)
        at_once = cost(lambda: gateway.view().accepted == SPACED + AT_ONCE, "accepted", AT_ONCE)
        bench.host.set_knobs({"paused": False}, "benchmark")
        total = SPACED + AT_ONCE
        ended = cost(lambda: is_told(gateway.view(), total), "told", total)
        bench.askers.heard(WAIT_SECONDS)
    one_by_one = f"{SPACED} requests, one each {1000 * SPACE_SECONDS:.0f} ms"
    yield Figure("D", "accept, one by one", spaced, "ms", against=one_by_one)
    yield Figure("D", "accept, at once", at_once, "ms", against=f"{AT_ONCE} requests")
    yield Figure("D", "one delta and the ending", ended, "ms", against=f"{total} requests")
    yield Figure("D", "the gateway idle", idle, "cores", against=f"{IDLE_SECONDS:.0f} s")


def is_told(view: MqttView, total: int) -> bool:
    return view.finished == total and not view.undelivered
