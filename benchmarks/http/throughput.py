"""Tokens a second of an unmodified load generator over HTTP, beside the engine without a gateway.

    python -m benchmarks.http.throughput --aiperf PROGRAM [--models paced,387m] [--streams 32]
                                         [--tokens 256] [--rounds 3] [--json FILE]

Host and gateway are real, and in this process. The same prompts are asked all at once, each for so
many tokens: in process, by a thread that drains the streams (`headless`); by clients in a process
of their own that do as little as is needed (`clients`); and by NVIDIA's aiperf, a program of its
own environment. They take turns, round by round. What is told is tokens a second from the first
request to the end of the last one, by whoever asked; of aiperf it is its own figure. CPU seconds of
the clients are for all that they do, their start included.

`paced` takes 50 ms for a step and computes nothing, as if on a GPU. A model that computes here
shares the cores with the clients. It is asked for replies with a JSON Schema, too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from app.gateway.http.gateway import HttpGateway
from app.gateway.http.settings import HttpQuota, HttpSettings
from app.process.columns import align
from app.process.console import write_json
from app.process.serving import load_model
from benchmarks.heading import heading
from benchmarks.http.asking import Ask, Asking
from benchmarks.options import positive_int
from benchmarks.paced import NAME, PacedLoader, loaded, wait_for
from benchmarks.screen import random_model
from engine.api.client import ChatMessage, LoadRequest, Submission
from engine.api.status import EnginePhase
from engine.api.stream import RequestStream
from engine.builtin import MODEL_DIR
from engine.serving.host import EngineHost

STEP_SECONDS = 0.05
MODELS = ("paced", "builtin", "387m")
PATIENCE = 600.0
# No reply ends before it has all of its tokens.
SCHEMA = {"type": "array", "items": {"type": "string"}, "minItems": 1_000}
FORMAT = {"type": "json_schema", "json_schema": {"name": "words", "schema": SCHEMA}}
HEAD = ("model", "replies", "asked by", "tok/s", "of headless", "rounds", "clients' CPU s")


@dataclass(frozen=True, slots=True)
class Found:
    """The result of one turn of one side.

    Attributes:
        rate: tokens a second.
        cpu: seconds that the clients took.
    """

    rate: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Bench:
    """The requests of all sides, and the engine that serves them.

    Attributes:
        name: of the model, as clients name it.
        aiperf: the program; None if it is left out.
    """

    host: EngineHost
    name: str
    prompts: Sequence[str]
    tokens: int
    aiperf: Path | None

    @property
    def num_tokens(self) -> int:
        return len(self.prompts) * self.tokens

    def headless(self, schema: bool) -> Found:
        """In process."""
        news = threading.Event()
        sampling: dict[str, object] = {"max_tokens": self.tokens, "ignore_eos": True}
        if schema:
            sampling["structure"] = {"json_schema": SCHEMA}
        begun = time.monotonic()
        streams: list[RequestStream] = [
            self.host.submit(
                Submission(messages=(ChatMessage("user", prompt),), sampling=sampling), news.set
            )
            for prompt in self.prompts
        ]
        told, left = 0, streams
        while left:
            if not news.wait(PATIENCE):
                raise TimeoutError(f"the engine has not ended within {PATIENCE:.0f} s")
            news.clear()
            deltas = [(stream, stream.drain()) for stream in left]
            left = [stream for stream, delta in deltas if delta is None or delta.finish is None]
            for _, delta in deltas:
                if delta is not None and delta.finish is not None:
                    if delta.finish.error is not None:
                        raise RuntimeError(delta.finish.error.message)
                    told += delta.finish.usage.completion_tokens
        seconds = time.monotonic() - begun
        _check(told, self.num_tokens)
        return Found(told / seconds, 0.0)

    def clients(self, schema: bool) -> Found:
        """By clients that do as little as is needed."""
        with self._gateway() as gateway:
            host, _, port = gateway.url.removeprefix("http://").rpartition(":")
            at, fields = time.monotonic() + 2.0, {"ignore_eos": True, **_format(schema)}
            asks = [Ask(one, self.tokens, at, PATIENCE, fields=fields) for one in self.prompts]
            before = _children()
            heard = Asking(host, int(port), asks).heard()
            cpu = _children() - before
        if not all(one.is_whole for one in heard):
            raise RuntimeError("a stream did not come to its end")
        seconds = max(one.times[-1] for one in heard) - min(one.sent_at for one in heard)
        return Found(self.num_tokens / seconds, cpu)

    def by_aiperf(self, schema: bool) -> Found:
        """By NVIDIA's load generator."""
        with self._gateway() as gateway, tempfile.TemporaryDirectory() as kept:
            folder = Path(kept)
            asked = folder / "prompts.jsonl"
            lines = (json.dumps({"text": prompt}) for prompt in self.prompts)
            asked.write_text("\n".join(lines), encoding="utf-8")
            extra = {"ignore_eos": True, "max_tokens": self.tokens, **_format(schema)}
            command = [
                *(str(self.aiperf), "profile", "--model", self.name, "--url", gateway.url),
                *("--endpoint-type", "chat", "--streaming", "--use-server-token-count"),
                *("--input-file", str(asked), "--custom-dataset-type", "single_turn"),
                *("--concurrency", str(len(self.prompts))),
                *("--request-count", str(len(self.prompts))),
                *("--extra-inputs", json.dumps(extra), "--tokenizer", str(MODEL_DIR)),
                *("--artifact-dir", str(folder), "--ui", "none", "--no-gpu-telemetry"),
            ]
            before = _children()
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
            )
            cpu = _children() - before
            try:
                told = json.loads((folder / "profile_export_aiperf.json").read_text())
                requests = told["request_count"]["avg"]
                rate = told["output_token_throughput"]["avg"]
                length = told["output_sequence_length"]["avg"]
            except (OSError, KeyError) as error:
                said = (done.stdout + done.stderr)[-2000:]
                raise RuntimeError(f"aiperf told no figures ({error}): {said}") from None
        _check(round(requests * length), self.num_tokens)
        return Found(float(rate), cpu)

    @contextmanager
    def _gateway(self) -> Iterator[HttpGateway]:
        settings = HttpSettings(listen="0", quota=HttpQuota(requests=4096), drain_seconds=0.0)
        with tempfile.TemporaryDirectory() as folder:
            gateway = HttpGateway(self.host, settings, Path(folder) / "store.db")
            gateway.start()
            try:
                yield gateway
            finally:
                gateway.stop()


def _format(schema: bool) -> Mapping[str, object]:
    return {"response_format": FORMAT} if schema else {}


def _check(told: int, asked: int) -> None:
    if told != asked:
        raise RuntimeError(f"{told:,} tokens came, and {asked:,} were asked for")


def _children() -> float:
    """CPU seconds of processes that this one started and that have ended."""
    times = os.times()
    return times.children_user + times.children_system


@contextmanager
def serving(name: str, options: argparse.Namespace) -> Iterator[Bench]:
    """A model, loaded."""
    prompts = [
        f"Chat {number}: how does a batch go on while requests come and go?"
        for number in range(options.streams)
    ]
    if name == "paced":
        loader = PacedLoader(STEP_SECONDS, options.streams, options.tokens + 256)
        with loaded(loader) as host:
            yield Bench(host, NAME, prompts, options.tokens, options.aiperf)
        return
    with tempfile.TemporaryDirectory() as kept:
        folder = MODEL_DIR
        if name == "387m":
            folder = Path(kept) / "387m"
            folder.mkdir()
            random_model.save(folder)
        host = EngineHost(load_model)
        try:
            host.load(LoadRequest(str(folder), max_num_seqs=options.streams))
            ends = (EnginePhase.READY, EnginePhase.FAILED)
            wait_for(lambda: host.status().phase in ends, "the model loaded")
            status = host.status()
            if status.phase is not EnginePhase.READY:
                raise RuntimeError(status.detail)
            yield Bench(host, status.model, prompts, options.tokens, options.aiperf)
        finally:
            host.shutdown()


@dataclass(frozen=True, slots=True)
class Side:
    """The turns of one side with one model and one kind of replies.

    Attributes:
        of_headless: its rate of that of free replies in process.
    """

    model: str
    replies: str
    by: str
    turns: Sequence[Found]
    of_headless: float

    @property
    def cells(self) -> list[str]:
        """A row of the table."""
        cpu = statistics.median(one.cpu for one in self.turns)
        return [
            *(self.model, self.replies, self.by, f"{_rate(self.turns):,.0f}"),
            f"{self.of_headless:.1%}",
            " ".join(f"{one.rate:,.0f}" for one in self.turns),
            f"{cpu:.1f}" if cpu else "",
        ]


def measure(name: str, options: argparse.Namespace) -> list[Side]:
    """The sides with one model."""
    found: dict[tuple[bool, str], list[Found]] = {}
    with serving(name, options) as bench:
        sides: dict[str, Callable[[bool], Found]] = {
            "headless": bench.headless,
            "clients": bench.clients,
        }
        if bench.aiperf is not None:
            sides["aiperf"] = bench.by_aiperf
        for schema in (False, True) if name != "paced" else (False,):
            bench.headless(schema)  # it warms up
            for number in range(options.rounds):
                order = list(sides)
                for side in order[number % len(order) :] + order[: number % len(order)]:
                    found.setdefault((schema, side), []).append(sides[side](schema))
    free = _rate(found[False, "headless"])
    return [
        Side(name, "JSON Schema" if schema else "free", by, turns, _rate(turns) / free)
        for (schema, by), turns in found.items()
    ]


def _rate(turns: Sequence[Found]) -> float:
    return statistics.median(one.rate for one in turns)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.http.throughput",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--aiperf", type=Path, help="the program; it is left out if not stated")
    parser.add_argument("--models", default="paced,387m", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--streams", type=positive_int, default=32)
    parser.add_argument("--tokens", type=positive_int, default=256, help="of each reply")
    parser.add_argument("--rounds", type=positive_int, default=3)
    parser.add_argument("--json", type=Path, dest="json_file", metavar="FILE")
    options = parser.parse_args()
    names = options.models.split(",")
    for name in names:
        if name not in MODELS:
            parser.error(f"--models: {name!r} is no model; it must be of {', '.join(MODELS)}")
    if options.aiperf is not None and not options.aiperf.is_file():
        parser.error(f"--aiperf: there is no file {str(options.aiperf)!r}")
    about = heading(
        f"{options.streams} streams of {options.tokens} tokens",
        f"load {psutil.getloadavg()[0]:.2f} at the start",
    )
    print(about, flush=True)
    sides = [side for name in names for side in measure(name, options)]
    print("\n".join(align([[*HEAD], *(side.cells for side in sides)], (3, 4, 6))))
    if options.json_file is not None:
        write_json({"about": about, "sides": [asdict(side) for side in sides]}, options.json_file)


if __name__ == "__main__":
    main()
