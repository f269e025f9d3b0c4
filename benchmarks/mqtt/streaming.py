"""Part A: cores of the gateway's thread while many replies stream."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

from app.gateway.mqtt.settings import MqttSettings
from app.gateway.quotas import Quota
from benchmarks.figure import Figure
from benchmarks.mqtt.bench import LEAD_SECONDS, RATE, Bench, request
from benchmarks.paced import WAIT_SECONDS, reply, wait_for
from benchmarks.usage import Usage

# What the gateway's thread may take of a core.
CORES = 0.25


def stream(bench: Bench) -> Iterator[Figure]:
    for delta_ms in (MqttSettings().delta_ms, 0):
        yield from stream_at(bench, delta_ms)


def stream_at(bench: Bench, delta_ms: int) -> Iterator[Figure]:
    count, seconds = bench.options.streams, bench.options.seconds
    num_tokens = round((seconds + 3 * LEAD_SECONDS) * RATE)
    with bench.gateway(delta_ms=delta_ms, quota=Quota(requests=count)) as gateway:
        # Begun together they would have their deltas in the same steps.
        now = time.monotonic()
        asks = [request(i, f"stream{delta_ms}-", num_tokens, now + i / count) for i in range(count)]
        bench.askers.ask(asks, seconds + WAIT_SECONDS)
        wait_for(lambda: gateway.view().running == count, "all streams accepted")
        time.sleep(LEAD_SECONDS)
        assert gateway.view().waiting == 0
        start = Usage.now(bench.broker.process)
        time.sleep(seconds)
        end = Usage.now(bench.broker.process)
        used = end - start
        assert gateway.view().running == count
        heard = bench.askers.heard(seconds + WAIT_SECONDS)
    deltas = [
        arrival
        for one in heard.values()
        for arrival in one.arrivals
        if start.time <= arrival.time < end.time
    ]
    tpots = [one.endings[0]["timings"]["tpot_ms"] for one in heard.values() if one.is_answered]
    each = f"a delta each {delta_ms} ms" if delta_ms else "a delta for each token"
    load = f"{count} streams at {1000 / statistics.median(tpots):.1f} tokens/s"
    gateway_cores = Figure("A", f"gateway, {each}", used.threads["mqtt"] / used.time, "cores", load)
    engine = used.threads["engine"] + used.threads["engine-text"]
    yield gateway_cores.below(CORES) if delta_ms else gateway_cores
    yield Figure("A", "  for a delta", 1000 * used.threads["mqtt"] / len(deltas), "ms")
    yield Figure("A", "  Mosquitto beside it", used.beside / used.time, "cores")
    yield Figure("A", "  the engine's threads", engine / used.time, "cores")
    yield Figure("A", "  deltas", len(deltas) / used.time, "/s", f"{count * RATE:g} tokens/s")
    yield Figure("A", "  their payload", sum(d.size for d in deltas) / used.time / 1000, "kB/s")
    whole = reply(num_tokens)
    intact = [
        one
        for one in heard.values()
        if one.is_answered and one.lost == 0 and whole == one.text == one.endings[0]["text"]
    ]
    yield Figure("A", "  streams without a gap", len(intact), against=load).exactly(count)
