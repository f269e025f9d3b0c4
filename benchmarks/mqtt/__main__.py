"""The cost of chat over MQTT: a gateway's core, time to first token, a burst, the journal.

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
from contextlib import closing
from pathlib import Path

import psutil

from app.process.console import write_json
from benchmarks.figure import HEAD, Figure
from benchmarks.heading import heading
from benchmarks.mqtt.asking import Askers
from benchmarks.mqtt.bench import LEAD_SECONDS, RATE, STEP_SECONDS, USERS, Bench
from benchmarks.mqtt.burst import burst
from benchmarks.mqtt.first_token import ARRIVALS, first_token
from benchmarks.mqtt.journal import journal
from benchmarks.mqtt.mosquitto import mosquitto, shipped_limits
from benchmarks.mqtt.streaming import stream
from benchmarks.options import add_parts, positive_float, positive_int
from benchmarks.paced import PacedLoader, loaded

PARTS = {"A": stream, "B": first_token, "C": burst, "D": journal}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.mqtt",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_parts(parser, PARTS)
    parser.add_argument(
        "--seconds", type=positive_float, default=20.0, help="of each window of part A"
    )
    parser.add_argument(
        "--streams", type=positive_int, default=64, help="at once, in part A; half in B"
    )
    parser.add_argument(
        "--requests", type=positive_int, default=300, help="of each kind, in part B"
    )
    parser.add_argument("--burst", type=positive_int, default=1000, help="requests, in part C")
    parser.add_argument("--json", type=Path, dest="json_file", metavar="FILE")
    options = parser.parse_args()
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
        for part in options.parts:
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


if __name__ == "__main__":
    main()
