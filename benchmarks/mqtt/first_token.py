"""Part B: time to first token by MQTT beside the same requests submitted in process."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from app.gateway.quotas import Quota
from benchmarks.figure import Figure
from benchmarks.mqtt.asking import Askers
from benchmarks.mqtt.bench import LEAD_SECONDS, PROMPT, RATE, USERS, Bench, request
from benchmarks.mqtt.mosquitto import mosquitto
from benchmarks.paced import WAIT_SECONDS
from engine.api.client import ChatMessage, Submission
from engine.api.origin import Origin
from engine.api.stream import RequestStream
from engine.api.telemetry import percentile
from engine.serving.host import EngineHost

# What MQTT may add.
ADDED_MS = 20.0
# Few tokens, for the rest says nothing.
SHORT_TOKENS = 4
# A second, of both kinds together.
ARRIVALS = 30.0


@dataclass(slots=True)
class Direct:
    """A request in process: its first news are its first token."""

    submitted: float
    stream: RequestStream | None = None
    news: list[float] = field(default_factory=list)

    def wake(self) -> None:
        self.news.append(time.monotonic())

    def times(self) -> tuple[float, float]:
        """Seconds to the first token, and those of them outside the engine. Waits for the end."""
        assert self.stream is not None
        *_, last = iter(self.stream)
        assert last.finish is not None
        in_engine = last.finish.timings.ttft
        assert in_engine is not None, last.finish
        ttft = self.news[0] - self.submitted
        return ttft, ttft - in_engine


def submit(host: EngineHost, index: int) -> Direct:
    direct = Direct(time.monotonic())
    submission = Submission(
        messages=(ChatMessage("user", f"direct{index} {PROMPT}"),),
        sampling={"max_tokens": SHORT_TOKENS},
        request_id=f"direct{index}",
        origin=Origin(user="direct"),
    )
    direct.stream = host.submit(submission, direct.wake)
    return direct


def first_token(bench: Bench) -> Iterator[Figure]:
    yield from first_token_at(bench, "as in examples/", ADDED_MS)
    with mosquitto() as broker, closing(Askers(broker.port, USERS)) as askers:
        plain = replace(bench, broker=broker, askers=askers)
        yield from first_token_at(plain, "as it comes", None)


def first_token_at(bench: Bench, broker: str, added_ms: float | None) -> Iterator[Figure]:
    count, background = bench.options.requests, bench.options.streams // 2
    rng = random.Random(1)
    start = time.monotonic() + LEAD_SECONDS
    moments = [start]
    while len(moments) < 2 * count:
        moments.append(moments[-1] + rng.expovariate(ARRIVALS))
    seconds = moments[-1] - start + 2 * LEAD_SECONDS
    asks = [request(i, "background", round(seconds * RATE)) for i in range(background)]
    asks += [request(i, "mqtt", SHORT_TOKENS, at) for i, at in enumerate(moments[::2])]
    with bench.gateway(quota=Quota(requests=background + count)) as gateway:
        bench.askers.ask(asks, seconds + WAIT_SECONDS)
        directs = []
        for i, at in enumerate(moments[1::2]):
            time.sleep(max(0.0, at - time.monotonic()))
            directs.append(submit(bench.host, i))
        busy = gateway.view().running
        heard = bench.askers.heard(seconds + WAIT_SECONDS)
    assert busy >= background, "the background ended before the requests"
    measured = [heard[ask.request_id] for ask in asks[background:]]
    in_process, in_host = zip(*(direct.times() for direct in directs), strict=True)
    by_mqtt = [one.first("delta") for one in measured]
    in_engine = [one.endings[0]["timings"]["ttft_ms"] / 1000 for one in measured]
    on_the_way = [ttft - own for ttft, own in zip(by_mqtt, in_engine, strict=True)]
    accepts = [one.first("accepted") for one in measured]
    yield Figure(
        "B",
        f"Mosquitto {broker}: requests",
        count,
        against=f"as many in process, {ARRIVALS:g} in all a second, {background} streams beside",
    )
    for q, name in ((0.5, "p50"), (0.99, "p99")):
        mqtt, direct, way, host, accept = (
            quantile_ms(times, q) for times in (by_mqtt, in_process, on_the_way, in_host, accepts)
        )
        added = Figure("B", "    more", mqtt - direct, "ms", against=f"{direct:.1f} ms in process")
        outside = Figure("B", "    on the way", way, "ms", against=f"{host:.1f} ms in process")
        if added_ms is not None and q == 0.99:
            added, outside = added.below(added_ms), outside.below(added_ms)
        yield Figure("B", f"  publish to first delta, {name}", mqtt, "ms")
        yield added
        yield outside
        yield Figure("B", "    publish to accepted", accept, "ms")


def quantile_ms(seconds: Sequence[float], q: float) -> float:
    return 1000.0 * percentile(sorted(seconds), q)
