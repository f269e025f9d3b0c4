"""What the interface on screen takes from an engine that computes on the same cores.

    python -m benchmarks.screen [--models builtin,387m] [--sessions N] [--seconds N] [--rounds N]
                                [--size COLUMNSxLINES] [--compare K=V,...]... [--json FILE]

For each model some programs hold the same chats, all of which stream: one without interface, an
`EngineHost` whose streams a thread drains, and the `tui` in a pseudo-terminal that a thread reads,
its chats typed in as a person would. They take turns: while one is measured the others are stopped
(SIGSTOP), so that all see the same machine. What is compared are tokens a second by the engines'
own step records, round by round, at the same lengths of context.

Another `tui` for each `--compare`, with these changed:

    switch=MS    sys.setswitchinterval: how long a thread waits for the interpreter
    nice=N       of the interface's thread, by setpriority on its id
    share=X      of the cores, what the interface may take (app.screens.cadence)
    wait=POLICY  OMP_WAIT_POLICY of torch's pool: active or passive
    spin=N       GOMP_SPINCOUNT of it

`interface`: CPU milliseconds a second of the threads that paint. `pools`: of those that compute and
are not Python's. `beside`: of a step, from its start to the next one's, what is not the runner's:
plan, commit, text handed over, snapshots, and the wait for the interpreter.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from app.columns import align
from app.console import write_json
from app.machine import num_cores
from benchmarks.screen import random_model
from benchmarks.screen.look import Look
from benchmarks.screen.terminal import Terminal
from engine.snapshot import EnginePhase
from engine.telemetry import StepRecord

CONTEXT = random_model.MAX_POSITIONS
PROMPT_WORDS = 24
OUTPUT_TOKENS = CONTEXT - 512
# After a turn begins: what the stop has left, and the interface's idea of its own pace, goes.
LEAD_SECONDS = 1.5
WAIT_SECONDS = 180.0
KEYS = {"new": "\x0e", "again": "\x12", "next": "\x1bOS", "send": "\r", "erase": "\x7f"}
KEY_SECONDS = 0.05
# Pressed after each turn, to see how long each takes; letters that nothing else has.
KEYS_PRESSED = 8
LETTERS = "āčēģīķļņ"
SETTINGS = ("switch", "nice", "share", "wait", "spin")
ENGINE_THREADS = ("engine", "engine-text", "answers", "consumer")


@dataclass(frozen=True, slots=True)
class Window:
    """What one program did in its turn.

    Attributes:
        rate: output tokens a second.
        step, beside: milliseconds, medians of the steps.
        interface, engine, text, pools: CPU milliseconds a second.
        painted: bytes a second.
        key: milliseconds from a key to its letter on the screen, the median; None without one.
    """

    rate: float
    step: float
    beside: float
    interface: float
    engine: float
    text: float
    pools: float
    painted: float
    key: float | None


COLUMNS = tuple(column.name for column in fields(Window))


@dataclass(slots=True)
class Turn:
    """From one look to another, to be filled in when the records are there."""

    before: Look
    after: Look
    painted: int
    keys: Sequence[float]


@dataclass(slots=True)
class Program:
    """One of the programs that take turns."""

    name: str
    pid: int
    pipe: Connection
    terminal: Terminal | None
    prompts: Sequence[str]
    turns: list[Turn] = field(default_factory=list)
    asked_at: int = 0

    def ask(self, *, again: bool) -> None:
        """Have every chat ask; `again` the same as before."""
        if self.terminal is None:
            self.pipe.send(self.prompts)
            return
        for prompt in self.prompts:
            if again:
                self.press("next")
                self.press("again")
            else:
                self.press("new")
                self.terminal.type(prompt)
                self.press("send")

    def press(self, key: str) -> None:
        assert self.terminal is not None
        self.terminal.type(KEYS[key])
        time.sleep(KEY_SECONDS)

    def look(self) -> Look:
        self.pipe.send("look")
        look: Look = self._receive()
        return look

    def records(self) -> tuple[StepRecord, ...]:
        self.pipe.send("records")
        return tuple(self._receive())

    def wait(self, condition: Callable[[Look], object], what: str) -> Look:
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition(look := self.look()):
            if look.phase is EnginePhase.FAILED or time.monotonic() > deadline:
                raise TimeoutError(f"{self.name}: waited in vain for {what}; it is {look}")
            time.sleep(0.05)
        return look

    def go(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def measure(self, seconds: float) -> None:
        """Take a turn; all chats stream throughout."""
        self.go()
        time.sleep(LEAD_SECONDS)
        painted, before = self._painted, self.look()
        time.sleep(seconds)
        after, painted = self.look(), self._painted - painted
        keys = [self._echo(number) for number in range(KEYS_PRESSED)] if self.terminal else []
        self.stop()
        if after.running < len(self.prompts):
            raise RuntimeError(f"{self.name}: only {after.running} chats streamed to the end")
        self.turns.append(Turn(before, after, painted, keys))

    def has_room(self, seconds: float) -> bool:
        """Whether the replies are long enough for a turn at twice the pace of the last."""
        if not self.turns:
            return True
        last = self.turns[-1]
        pace = (last.after.step - last.before.step) / (last.after.time - last.before.time)
        left = self.asked_at + OUTPUT_TOKENS - last.after.step
        return 2 * pace * (LEAD_SECONDS + seconds) < left

    def begin(self, *, again: bool = False) -> None:
        """Have all chats stream."""
        self.go()
        if again:
            self.wait(lambda look: not look.running, "the end of all replies")
        self.ask(again=again)
        everyone = len(self.prompts)
        self.asked_at = self.wait(lambda look: look.running == everyone, "all to stream").step
        self.stop()

    def windows(self) -> list[Window]:
        records = self.records()
        return [_window(turn, records) for turn in self.turns]

    @property
    def _painted(self) -> int:
        return self.terminal.painted if self.terminal is not None else 0

    def _echo(self, number: int) -> float:
        """Seconds from a key to its letter in the prompt, which it is then taken from again."""
        assert self.terminal is not None
        time.sleep(KEY_SECONDS)
        seconds = self.terminal.echo(LETTERS[number], WAIT_SECONDS)
        self.press("erase")
        return seconds

    def _receive(self) -> Any:
        if not self.pipe.poll(WAIT_SECONDS):
            raise TimeoutError(f"{self.name} does not answer")
        return self.pipe.recv()


def _window(turn: Turn, records: Sequence[StepRecord]) -> Window:
    before, after = turn.before, turn.after
    steps = [r for r in records if before.time <= r.start and r.end <= after.time]
    cycles = [(late.start - early.start, early) for early, late in pairwise(steps)]
    seconds = after.time - before.time
    used = {
        name: 1000 * (cpu - before.threads.get(name, 0.0)) / seconds
        for name, cpu in after.threads.items()
    }
    process = 1000 * (after.process - before.process) / seconds
    runner = [early.times.prepare + early.times.forward + early.times.sample for _, early in cycles]
    return Window(
        rate=sum(early.output_tokens for _, early in cycles) / sum(cycle for cycle, _ in cycles),
        step=1000 * statistics.median(cycle for cycle, _ in cycles),
        beside=1000 * statistics.mean(c - own for (c, _), own in zip(cycles, runner, strict=True)),
        interface=sum(cpu for name, cpu in used.items() if name not in ENGINE_THREADS),
        engine=used["engine"],
        text=used["engine-text"],
        pools=process - sum(used.values()),
        painted=turn.painted / seconds,
        key=1000 * statistics.median(turn.keys) if turn.keys else None,
    )


@contextmanager
def program(
    name: str, model: str, compare: Mapping[str, str], options: argparse.Namespace
) -> Iterator[Program]:
    """One with its model loaded; without interface where it is called headless."""
    headless = name == "headless"
    ours, theirs = Pipe()
    command = [sys.executable, "-m", "benchmarks.screen.streaming", "--pipe", str(theirs.fileno())]
    for setting, option in (("switch", "--switch-ms"), ("share", "--share")):
        if setting in compare:
            command += [option, compare[setting]]
    prompts = [
        " ".join(f"word{i * PROMPT_WORDS + j}" for j in range(PROMPT_WORDS))
        for i in range(options.sessions)
    ]
    with tempfile.TemporaryDirectory() as folder:
        env = {k: v for k, v in os.environ.items() if not k.startswith("TUI_")}
        env |= {
            "XDG_CONFIG_HOME": folder,
            "TUI_DATA_DIR": folder,
            "TUI_LOG_FILE": f"{folder}/log",
            "TUI_MODEL": model,
            "TUI_DEVICE": "cpu",
            "TUI_MAX_NUM_SEQS": str(options.sessions),
            "TUI_NUM_BLOCKS": str(options.sessions * CONTEXT // 16 + 64),
            "TUI_MAX_TOKENS": str(OUTPUT_TOKENS),
            "TUI_IGNORE_EOS": "true",
        }
        if "wait" in compare:
            env["OMP_WAIT_POLICY"] = compare["wait"]
        if "spin" in compare:
            env["GOMP_SPINCOUNT"] = compare["spin"]
        terminal: Terminal | None = None
        process: subprocess.Popen[bytes]
        if headless:
            process = subprocess.Popen([*command, "headless"], env=env, pass_fds=(theirs.fileno(),))
        else:
            terminal = Terminal([*command, "screen"], options.size, env, (theirs.fileno(),))
            process = terminal.process
        theirs.close()
        one = Program(name, process.pid, ours, terminal, prompts)
        try:
            one.wait(lambda look: look.phase is EnginePhase.READY, "the model")
            if "nice" in compare:
                os.setpriority(os.PRIO_PROCESS, process.pid, int(compare["nice"]))
            yield one
        finally:
            with suppress(ProcessLookupError):
                process.kill()
                one.go()
            process.wait()
            if terminal is not None:
                terminal.close()
            ours.close()


def take_turns(programs: Sequence[Program], rounds: int, seconds: float) -> None:
    for number in range(rounds):
        if not all(one.has_room(seconds) for one in programs):
            # All of them: a step costs more the longer the chats are.
            for one in programs:
                one.begin(again=True)
        # Who goes first changes: what goes after another finds the caches cold.
        order = [*programs[number % len(programs) :], *programs[: number % len(programs)]]
        for one in order:
            one.measure(seconds)


def measure(model: str, options: argparse.Namespace) -> dict[str, list[Window]]:
    """The windows of each program on one model, by its name."""
    settings: dict[str, Mapping[str, str]] = {"headless": {}, "screen": {}}
    settings |= {",".join(f"{k}={v}" for k, v in one.items()): one for one in options.compare}
    with tempfile.TemporaryDirectory() as folder:
        if model == "387m":
            random_model.save(Path(folder))
        source = folder if model == "387m" else model
        return _measure(source, settings, options)


def _measure(
    source: str, settings: Mapping[str, Mapping[str, str]], options: argparse.Namespace
) -> dict[str, list[Window]]:
    with ExitStack() as stack:
        programs = []
        for name, compare in settings.items():
            one = stack.enter_context(program(name, source, compare, options))
            one.begin()
            programs.append(one)
        take_turns(programs, options.rounds, options.seconds)
        windows = {}
        for one in programs:
            one.go()
            windows[one.name] = one.windows()
            one.stop()
        return windows


def rows(model: str, windows: Mapping[str, Sequence[Window]]) -> Iterator[tuple[str, ...]]:
    """A row for each program: medians over its turns, the ratio to headless round by round."""
    bare = [window.rate for window in windows["headless"]]
    for name, turns in windows.items():
        ratio = statistics.median(w.rate / b for w, b in zip(turns, bare, strict=True))
        figures = (_median([getattr(window, column) for window in turns]) for column in COLUMNS)
        yield (model, name, f"{ratio:.3f}", *figures)


def _median(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):,.1f}" if known else "-"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.screen",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", default="builtin,387m")
    parser.add_argument("--sessions", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=3.0, help="of one turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=_size, default=(160, 48), metavar="COLUMNSxLINES")
    parser.add_argument("--compare", type=_setting, action="append", default=[], metavar="K=V,...")
    parser.add_argument("--json", type=Path, dest="json_file", metavar="FILE")
    options = parser.parse_args()
    # Else the programs outlive it, stopped, with a model each.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    columns, lines = options.size
    print(
        f"{num_cores()} cores of {platform.machine()}, Python {platform.python_version()};"
        f" {options.sessions} sessions, {columns}x{lines}, {options.rounds} rounds of"
        f" {options.seconds:g} s",
        flush=True,
    )
    found = {model: measure(model, options) for model in options.models.split(",")}
    head = ("model", "program", "ratio", "tok/s", "step ms", *COLUMNS[2:])
    table = [head, *(row for model, windows in found.items() for row in rows(model, windows))]
    print("\n".join(align(table, numbers=range(2, len(head)))))
    if options.json_file is not None:
        write_json(
            {m: {n: [asdict(w) for w in ws] for n, ws in by.items()} for m, by in found.items()},
            options.json_file,
        )


def _size(text: str) -> tuple[int, int]:
    columns, _, lines = text.partition("x")
    return int(columns), int(lines)


def _setting(text: str) -> dict[str, str]:
    pairs = dict(pair.partition("=")[::2] for pair in text.split(","))
    for name in pairs:
        if name not in SETTINGS:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(SETTINGS)}")
    return pairs


if __name__ == "__main__":
    main()
