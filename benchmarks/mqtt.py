"""What chat over MQTT costs: a gateway's core, time to first token, a burst, the journal.

    python -m benchmarks.mqtt [--parts A,B,C,D] [--seconds N] [--streams N] [--requests N]
                              [--burst N] [--json FILE]

The gateway, its engine host and a Mosquitto, with the limits of `examples/mosquitto`, are real; the
model takes 25 ms for every step and computes nothing, as if on a GPU: 40 tokens/s for each
sequence. The clients (paho, MQTT 5) are a process of their own. All are on this machine and read
one monotonic clock.

A. Cores of the gateway's thread while many replies stream, deltas coalesced and each by itself.
B. Time to first token by MQTT beside the same requests submitted in process. Both come in turn, on
   one Poisson process, while replies stream over MQTT. A request waits for the step under way and
   then for its own; arrivals of both kinds fall anywhere in a step, so that this is the same to
   both. `on the way` is what one request spent outside the engine: from publish to first delta,
   less the engine's own time to first token, which the final states. Then the same with a Mosquitto
   as it comes, without `set_tcp_nodelay true`: it holds a packet back until the one before is
   acknowledged, by Linux up to 40 ms later, on its way to the gateway and on its way to the client.
C. Requests published all at once, with a quota that has room for all and with the default one.
D. CPU time of the gateway's thread for a request while the engine is paused: read, journalled,
   acknowledged, `accepted` and given to the engine. Then for its one delta and its ending, which is
   journalled before it is told. What the thread takes when idle is deducted.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from app.gateway.mqtt.gateway import MqttGateway
from app.gateway.mqtt.settings import MqttSettings, Quota
from app.gateway.mqtt.transport.address import BrokerAddress
from app.gateway.mqtt.transport.link import LinkPhase
from app.gateway.mqtt.view import GatewayView
from app.process.console import write_json
from benchmarks.asking import Ask, Askers, Heard
from benchmarks.figure import HEAD, Figure
from benchmarks.heading import heading
from benchmarks.mosquitto import Mosquitto, mosquitto, shipped_limits
from benchmarks.paced import NAME, PacedLoader, reply
from benchmarks.usage import Usage, peak_memory
from engine.api.client import ChatMessage, LoadRequest, Submission
from engine.api.origin import Origin
from engine.api.status import EnginePhase
from engine.api.stream import RequestStream
from engine.api.telemetry import percentile
from engine.serving.host import EngineHost

STEP_SECONDS = 0.025
RATE = 1 / STEP_SECONDS
USERS = tuple(f"user{i}" for i in range(10))
PROMPT = " ".join(f"word{i}" for i in range(64))
MAX_REQUESTS = 100_000
WAIT_SECONDS = 60.0
# Until streams that begin together have settled, and from the last look at them to their end.
LEAD_SECONDS = 2.0
# Of part A: what the gateway's thread may take of a core.
CORES = 0.25
# Of part B: what MQTT may add; few tokens, for the rest says nothing; arrivals a second of both
# kinds together.
ADDED_MS = 20.0
SHORT_TOKENS = 4
ARRIVALS = 30.0
BURST_TOKENS = 16
# Of part D; the journal has who was told a little after they were.
SETTLE_SECONDS = 0.5
SPACED, SPACE_SECONDS, AT_ONCE, IDLE_SECONDS = 200, 0.01, 500, 2.0


@dataclass(frozen=True, slots=True)
class Bench:
    """What all parts share."""

    broker: Mosquitto
    host: EngineHost
    askers: Askers
    options: argparse.Namespace

    @contextmanager
    def gateway(self, **settings: Any) -> Iterator[MqttGateway]:
        """One with a new store, connected."""
        url = f"mqtt://127.0.0.1:{self.broker.port}"
        with tempfile.TemporaryDirectory() as folder:
            gateway = MqttGateway(
                self.host,
                MqttSettings(url=url, node="bench", max_requests=MAX_REQUESTS, **settings),
                BrokerAddress.parse(url),
                Path(folder, "batchdeck.db"),
            )
            gateway.start()
            try:
                wait_for(lambda: gateway.view().phase is LinkPhase.ONLINE, "the gateway online")
                yield gateway
            finally:
                gateway.stop(0.0)


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not in {WAIT_SECONDS:.0f} s")
        time.sleep(0.005)


def request(index: int, name: str, max_tokens: int, at: float = 0.0) -> Ask:
    messages = [{"role": "user", "content": f"{name}{index} {PROMPT}"}]
    body = json.dumps({"messages": messages, "max_tokens": max_tokens}).encode()
    return Ask(USERS[index % len(USERS)], f"{name}{index}", at, body)


def quantile_ms(seconds: Sequence[float], q: float) -> float:
    return 1000.0 * percentile(sorted(seconds), q)


# A.


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


# B.


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


# C.


def burst(bench: Bench) -> Iterator[Figure]:
    count = bench.options.burst
    yield from burst_at(bench, "room for all", Quota(requests=count))
    yield from burst_at(bench, "default quota", Quota())


def burst_at(bench: Bench, name: str, quota: Quota) -> Iterator[Figure]:
    count = bench.options.burst
    asks = [request(i, f"{name[0]}-burst", BURST_TOKENS) for i in range(count)]
    with bench.gateway(quota=quota) as gateway:
        with peak_memory() as resident:
            bench.askers.ask(asks, 2 * WAIT_SECONDS)
            heard = bench.askers.heard(3 * WAIT_SECONDS)
        wait_for(lambda: not gateway.view().undelivered, "all endings delivered")
        view = gateway.view()
    ones = tuple(heard.values())
    ends = Counter(
        "answered" if end["type"] == "final" else str(end["error"]["code"])
        for one in ones
        for end in one.endings
    )
    told = ", ".join(f"{number} {what}" for what, number in sorted(ends.items()))
    once = sum(len(one.endings) == 1 for one in ones)
    first = min(one.published for one in ones)
    published = max(one.published for one in ones) - first
    answered = ends["answered"]
    alone = answered * BURST_TOKENS * STEP_SECONDS / bench.options.streams
    yield Figure("C", f"{name}: ids with one ending", once, against=told).exactly(count)
    yield Figure("C", "  of them answered or 429", answered + ends["429"]).exactly(count)
    yield Figure("C", "  accepted by the gateway", view.accepted, against=f"{len(USERS)} users")
    yield Figure(
        "C",
        "  until all have ended",
        last_moment(ones) - first,
        "s",
        against=f"{alone:.1f} s for the engine alone, published in {published:.2f} s",
    )
    yield Figure("C", "  until all are accepted or refused", last_taken(ones) - first, "s")
    yield Figure(
        "C",
        "  most memory",
        resident[1] / 1e6,
        "MB",
        against=f"{resident[0] / 1e6:.0f} MB before",
    )


def last_moment(ones: Sequence[Heard]) -> float:
    return max(arrival.time for one in ones for arrival in one.arrivals)


def last_taken(ones: Sequence[Heard]) -> float:
    return max(one.arrivals[0].time for one in ones if one.arrivals)


# D.


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


def is_told(view: GatewayView, total: int) -> bool:
    return view.finished == total and not view.undelivered


PARTS = {"A": stream, "B": first_token, "C": burst, "D": journal}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.mqtt",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--seconds", type=float, default=20.0, help="of each window of part A")
    parser.add_argument("--streams", type=int, default=64, help="at once, in part A; half in B")
    parser.add_argument("--requests", type=int, default=300, help="of each kind, in part B")
    parser.add_argument("--burst", type=int, default=1000, help="requests, in part C")
    parser.add_argument("--json", type=Path, dest="json_file", metavar="FILE")
    options = parser.parse_args()
    parts = [part.strip().upper() for part in options.parts.split(",")]
    for part in parts:
        if part not in PARTS:
            parser.error(f"--parts: {part!r} is no part; it must be of {', '.join(PARTS)}")
    for name in ("seconds", "streams", "requests", "burst"):
        if (value := getattr(options, name)) <= 0:
            parser.error(f"--{name}: {value} is too few; it must be more than 0")
    longest = max(options.seconds, 2 * options.requests / ARRIVALS * 1.5) + 5 * LEAD_SECONDS
    loader = PacedLoader(STEP_SECONDS, options.streams, round(longest * RATE) + 256)
    figures: list[Figure] = []
    with (
        mosquitto(*shipped_limits()) as broker,
        closing(Askers(broker.port, USERS)) as askers,
        loaded(loader) as host,
    ):
        about = heading(broker.version, f"load {psutil.getloadavg()[0]:.2f} at the start")
        print(about)
        print(HEAD, flush=True)
        bench = Bench(broker, host, askers, options)
        for part in parts:
            for figure in PARTS[part](bench):
                figures.append(figure)
                print(figure, flush=True)
    if options.json_file is not None:
        write_json(
            {
                "about": about,
                "options": {**vars(options), "json_file": None},
                "figures": [figure.to_json() for figure in figures],
            },
            options.json_file,
        )


@contextmanager
def loaded(loader: PacedLoader) -> Iterator[EngineHost]:
    host = EngineHost(loader)
    try:
        host.load(LoadRequest(NAME))
        wait_for(lambda: host.status().phase is EnginePhase.READY, "the model loaded")
        yield host
    finally:
        host.shutdown()


if __name__ == "__main__":
    main()
