"""The cost of chat over HTTP: a gateway's core, time to first token, connections, slow readers.

    python -m benchmarks.http [--parts A,B,C,D] [--seconds N] [--streams N] [--requests N]
                              [--connections N] [--json FILE]

Gateway and engine host are real; the model takes 50 ms for every step and computes nothing, as if
on a GPU: 20 tokens/s for each sequence. The clients are a process of their own, with a connection
each. All are on this machine and read one monotonic clock.

A. Cores of the gateway's thread while replies stream to clients, an event for each token.
B. Time to first token over HTTP beside the same requests submitted in process, both on one Poisson
   process, while as many replies as in A stream. A request waits for the step under way and then
   for its own; arrivals of both kinds fall anywhere in a step, so that this is the same to both.
C. Connections that are held open, what each takes of memory, and what streams lose by them and by
   as many clients again as stream, which ask and read nothing.
D. Time to first token while a batch of `/v1/batches` has all the slots that it may have, beside the
   same requests without one. A slot that is not free is a reply's length away: 10 s.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from app.gateway.http.access import ANYBODY
from app.gateway.http.batches.room import LEFT_PART
from app.gateway.http.gateway import HttpGateway
from app.gateway.http.settings import HttpQuota, HttpSettings
from app.process.console import write_json
from app.store.files import Line
from app.store.store import Store
from benchmarks.figure import HEAD, Figure
from benchmarks.heading import heading
from benchmarks.http.asking import Ask, Asking, Heard
from benchmarks.options import add_parts, positive_float, positive_int
from benchmarks.paced import PacedLoader, loaded, reply, wait_for
from benchmarks.usage import Usage
from engine.api.client import ChatMessage, Submission
from engine.api.origin import Origin
from engine.api.stream import RequestStream
from engine.api.telemetry import percentile
from engine.serving.host import EngineHost

STEP_SECONDS = 0.05
RATE = 1 / STEP_SECONDS
LEAD_SECONDS = 3.0
PROMPT = "and so the story of the whale goes on for as long as anybody listens to it"
# What the gateway may take of a core, and what it may add to a time to first token.
CORES = 0.3
ADDED_MS = {0.5: 3.0, 0.99: 15.0}
# What a batch may add to it.
BATCH_MS = {0.5: 10.0, 0.99: 250.0}
LINE_TOKENS = 200
# A second, of both kinds together. Few tokens, for the rest says nothing.
ARRIVALS = 20.0
SHORT_TOKENS = 3


@dataclass(frozen=True, slots=True)
class Bench:
    """The objects that each part works with."""

    host: EngineHost
    options: argparse.Namespace

    @contextmanager
    def gateway(self, lines: int = 0) -> Iterator[HttpGateway]:
        """A gateway, with a batch of so many requests."""
        settings = HttpSettings(listen="0", quota=HttpQuota(requests=4096), drain_seconds=0.0)
        with TemporaryDirectory() as folder:
            store_file = Path(folder) / "store.db"
            if lines:
                _put_batch(store_file, lines)
            gateway = HttpGateway(self.host, settings, store_file)
            gateway.start()
            try:
                yield gateway
            finally:
                gateway.stop()

    def ask(self, gateway: HttpGateway, asks: list[Ask]) -> Asking:
        host, _, port = gateway.url.removeprefix("http://").rpartition(":")
        return Asking(host, int(port), asks)

    def streams(self, seconds: float) -> list[Ask]:
        """Replies that stream for so long, begun at different moments of a step."""
        count, now = self.options.streams, time.monotonic() + 1.0
        num_tokens = round(seconds * RATE)
        return [
            Ask(f"stream{n} {PROMPT}", num_tokens, now + n / count, seconds + 30)
            for n in range(count)
        ]


def streaming(bench: Bench) -> Iterator[Figure]:
    """Part A."""
    count, seconds = bench.options.streams, bench.options.seconds
    with bench.gateway() as gateway:
        asks = bench.streams(seconds + 2 * LEAD_SECONDS)
        asking = bench.ask(gateway, asks)
        wait_for(lambda: gateway.view().running == count, "all streams begun")
        time.sleep(LEAD_SECONDS)
        clients = psutil.Process(asking.process.pid)
        start = Usage.now(clients)
        time.sleep(seconds)
        end = Usage.now(clients)
        used = end - start
        heard = asking.heard()
    events = sum(start.time <= at < end.time for one in heard for at in one.times)
    load = f"{count} streams at {RATE:g} tokens/s"
    yield Figure("A", "gateway", used.threads["http"] / used.time, "cores", load).below(CORES)
    yield Figure("A", "  for an event", 1000 * used.threads["http"] / events, "ms")
    engine = used.threads["engine"] + used.threads["engine-text"]
    yield Figure("A", "  the engine's threads", engine / used.time, "cores")
    yield Figure("A", "  events", events / used.time, "/s", f"{count * RATE:g} tokens/s")
    yield Figure("A", "  streams that are whole", _whole(asks, heard), against=load).exactly(count)


@dataclass(slots=True)
class Direct:
    """A request in process: its first news are its first token."""

    submitted: float
    first: float = 0.0
    stream: RequestStream | None = None

    def wake(self) -> None:
        self.first = self.first or time.monotonic()


def first_token(bench: Bench) -> Iterator[Figure]:
    """Part B."""
    count, background = bench.options.requests, bench.options.streams
    rng = random.Random(1)
    moments = [time.monotonic() + LEAD_SECONDS]
    while len(moments) < 2 * count:
        moments.append(moments[-1] + rng.expovariate(ARRIVALS))
    seconds = moments[-1] - time.monotonic() + LEAD_SECONDS
    asks = bench.streams(seconds)
    asks += [Ask(f"http{n} {PROMPT}", SHORT_TOKENS, at, 60) for n, at in enumerate(moments[::2])]
    directs = []
    with bench.gateway() as gateway:
        asking = bench.ask(gateway, asks)
        for n, at in enumerate(moments[1::2]):
            time.sleep(max(0.0, at - time.monotonic()))
            direct = Direct(time.monotonic())
            submission = Submission(
                messages=(ChatMessage("user", f"direct{n} {PROMPT}"),),
                sampling={"max_tokens": SHORT_TOKENS},
                origin=Origin(user="direct"),
            )
            direct.stream = bench.host.submit(submission, direct.wake)
            directs.append(direct)
        busy = gateway.view().running
        heard = asking.heard()[background:]
    assert busy >= background, "the background ended before the requests"
    by_http = sorted(one.times[0] - one.sent_at for one in heard)
    in_process = sorted(one.first - one.submitted for one in directs)
    beside = f"as many in process, {ARRIVALS:g} in all a second, {background} streams beside"
    yield Figure("B", "requests", count, against=beside)
    for q, name in ((0.5, "p50"), (0.99, "p99")):
        http, direct_ms = (1000 * percentile(times, q) for times in (by_http, in_process))
        yield Figure("B", f"  sent to first event, {name}", http, "ms")
        more = Figure("B", "    more", http - direct_ms, "ms", f"{direct_ms:.1f} ms in process")
        yield more.below(ADDED_MS[q])


def connections(bench: Bench) -> Iterator[Figure]:
    """Part C."""
    count, held, seconds = bench.options.streams, bench.options.connections, bench.options.seconds
    process = psutil.Process()
    with bench.gateway() as gateway:
        asks = bench.streams(seconds)
        alone = bench.ask(gateway, asks).heard()
        before = process.memory_info().rss
        idle = [Ask("", 0, 0.0, seconds + 20, is_idle=True)] * held
        holding = bench.ask(gateway, idle)
        wait_for(lambda: gateway.view().connections >= held, "all connections made")
        memory = process.memory_info().rss - before
        deaf = [
            Ask(f"deaf{n} {PROMPT}", round((seconds + 10) * RATE), 0.0, seconds + 10, reads=False)
            for n in range(count)
        ]
        deafening = bench.ask(gateway, deaf)
        wait_for(lambda: gateway.view().running >= count, "those that do not read have asked")
        asks = bench.streams(seconds)
        beside = bench.ask(gateway, asks).heard()
        kept = gateway.view().connections
        holding.heard()
        deafening.heard()
        wait_for(lambda: gateway.view().running == 0, "what nobody reads ended")
    yield Figure("C", "connections held", kept, against=f"{held} idle").at_least(held)
    yield Figure("C", "  memory of each", memory / held / 1024, "KiB")
    for q, name in ((0.5, "p50"), (0.99, "p99")):
        one, other = (1000 * percentile(_gaps(heard), q) for heard in (alone, beside))
        told = f"{one:.1f} ms without"
        figure = Figure("C", f"  between tokens beside them, {name}", other, "ms", told)
        yield figure.below(1.2 * one) if q == 0.99 else figure
    yield Figure("C", "  streams that are whole", _whole(asks, beside)).exactly(count)


def beside_batch(bench: Bench) -> Iterator[Figure]:
    """Part D."""
    slots = bench.options.slots
    alone = _first_events(bench, 0)
    beside = _first_events(bench, 1000 + 2 * slots)
    yield Figure("D", "requests", len(beside), against=f"{ARRIVALS / 2:g} a second, {slots} slots")
    for q, name in ((0.5, "p50"), (0.99, "p99")):
        with_it, without = (1000 * percentile(times, q) for times in (beside, alone))
        figure = Figure("D", f"  sent to first event, {name}", with_it, "ms")
        yield figure
        more = Figure("D", "    more", with_it - without, "ms", f"{without:.1f} ms without a batch")
        yield more.below(BATCH_MS[q])


def _first_events(bench: Bench, lines: int) -> list[float]:
    """Seconds from each request to its first event, sorted, beside a batch of so many lines."""
    slots = bench.options.slots
    rng = random.Random(1)
    with bench.gateway(lines) as gateway:
        if lines:
            most = slots - slots // LEFT_PART
            wait_for(lambda: _num_running(bench) >= most, "the batch has its slots")
        moments = [time.monotonic() + LEAD_SECONDS]
        while len(moments) < bench.options.requests:
            moments.append(moments[-1] + rng.expovariate(ARRIVALS / 2))
        asks = [Ask(f"http{n} {PROMPT}", SHORT_TOKENS, at, 60) for n, at in enumerate(moments)]
        heard = bench.ask(gateway, asks).heard()
    wait_for(lambda: _num_running(bench) == 0, "what was of the batch is given back")
    return sorted(one.times[0] - one.sent_at for one in heard)


def _num_running(bench: Bench) -> int:
    snapshot = bench.host.snapshot()
    return 0 if snapshot is None else snapshot.num_running


def _put_batch(store_file: Path, count: int) -> None:
    """A batch that whoever opens the store runs."""
    messages = [{"role": "user", "content": PROMPT}]
    body = {"messages": messages, "max_tokens": LINE_TOKENS}
    asked = {"method": "POST", "url": "/v1/chat/completions", "body": body}
    with closing(Store(store_file)) as store:
        file = store.files.create(ANYBODY)
        lines = (json.dumps({"custom_id": f"{n}", **asked}).encode() for n in range(count))
        store.files.append(file.number, (Line(n, line + b"\n") for n, line in enumerate(lines, 1)))
        store.files.finish(file.number, "asks.jsonl", "batch", 3600.0)
        store.batches.create(
            ANYBODY,
            endpoint="/v1/chat/completions",
            input_file=file.id,
            completion_window="24h",
            seconds=3600.0,
            metadata=None,
            keep_seconds=3600.0,
        )


def _gaps(heard: list[Heard]) -> list[float]:
    return sorted(b - a for one in heard for a, b in pairwise(one.times))


def _whole(asks: list[Ask], heard: list[Heard]) -> int:
    pairs = zip(asks, heard, strict=True)
    return sum(one.is_whole and one.text == reply(ask.num_tokens) for ask, one in pairs)


PARTS = {"A": streaming, "B": first_token, "C": connections, "D": beside_batch}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.http",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_parts(parser, PARTS)
    parser.add_argument("--seconds", type=positive_float, default=15.0, help="of each window")
    parser.add_argument("--streams", type=positive_int, default=64, help="at once")
    parser.add_argument(
        "--requests", type=positive_int, default=200, help="of each kind, in parts B and D"
    )
    parser.add_argument(
        "--connections", type=positive_int, default=1000, help="that are held, in part C"
    )
    parser.add_argument("--json", type=Path, dest="json_file", metavar="FILE")
    options = parser.parse_args()
    longest = max(options.seconds + 30, 2 * options.requests / ARRIVALS * 1.5 + 30)
    options.slots = 3 * options.streams + 64
    loader = PacedLoader(STEP_SECONDS, options.slots, round(longest * RATE) + 256)
    figures: list[Figure] = []
    with loaded(loader) as host:
        about = heading(f"load {psutil.getloadavg()[0]:.2f} at the start")
        print(about)
        print(HEAD, flush=True)
        for part in options.parts:
            for figure in PARTS[part](Bench(host, options)):
                figures.append(figure)
                print(figure, flush=True)
    if options.json_file is not None:
        told = {"about": about, "figures": [figure.to_json() for figure in figures]}
        write_json(told, options.json_file)


if __name__ == "__main__":
    main()
