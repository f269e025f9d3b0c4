"""Part C: requests published all at once, with a quota that has room for all and the default."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from app.gateway.quotas import Quota
from benchmarks.figure import Figure
from benchmarks.mqtt.asking import Heard
from benchmarks.mqtt.bench import STEP_SECONDS, USERS, Bench, request
from benchmarks.paced import WAIT_SECONDS, wait_for
from benchmarks.usage import peak_memory

BURST_TOKENS = 16


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
