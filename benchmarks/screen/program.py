"""Program: one of those that take turns, in a process of its own, and what it is told to do."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.screen.look import Look
from benchmarks.screen.models import Model
from benchmarks.screen.terminal import Terminal
from benchmarks.screen.window import Turn, Window, window_of
from engine.api.config import BLOCK_SIZE
from engine.api.status import EnginePhase
from engine.api.telemetry import StepRecord

PROMPT_WORDS = 24
PROMPT_ROOM = 512
# After a turn begins: what the stop has left, and the interface's idea of its own pace, goes.
LEAD_SECONDS = 1.5
WAIT_SECONDS = 180.0
KEYS = {"new": "\x0e", "again": "\x12", "next": "\x1bOS", "send": "\r", "erase": "\x7f"}
KEY_SECONDS = 0.05
# For a chat to ask, before its key is pressed once more.
AGAIN_SECONDS = 1.0
# Pressed after each turn, to see how long each takes; letters that nothing else has.
KEYS_PRESSED = 8
LETTERS = "āčēģīķļņ"


@dataclass(slots=True)
class Program:
    """One of the programs that take turns.

    Attributes:
        waits: whether a device that stands in for the model computes.
    """

    name: str
    pid: int
    pipe: Connection
    terminal: Terminal | None
    prompts: Sequence[str]
    output_tokens: int
    waits: bool = False
    turns: list[Turn] = field(default_factory=list)
    asked_at: int = 0

    def ask(self, *, again: bool) -> None:
        """Have every chat ask. With `again` each asks what it asked before."""
        if self.terminal is None:
            self.pipe.send(self.prompts)
            return
        for number, prompt in enumerate(self.prompts, 1):
            if again:
                self.press("next")
                self._press_again(number)
            else:
                self.press("new")
                self.terminal.type(prompt)
                self.press("send")

    def press(self, key: str) -> None:
        assert self.terminal is not None
        self.terminal.type(KEYS[key])
        time.sleep(KEY_SECONDS)

    def _press_again(self, running: int) -> None:
        """Until so many chats stream.

        The engine's end of a reply comes before the interface's, which refuses the key until then.
        """
        deadline = time.monotonic() + WAIT_SECONDS
        while self.look().running < running:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name}: chat {running} does not ask again")
            self.press("again")
            pressed = time.monotonic()
            while self.look().running < running and time.monotonic() < pressed + AGAIN_SECONDS:
                time.sleep(KEY_SECONDS)

    def look(self) -> Look:
        self.pipe.send("look")
        look: Look = self._receive()
        return look

    def records(self, since: int) -> tuple[StepRecord, ...]:
        self.pipe.send(since)
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
        # At once, for the engine keeps the last ones only.
        records = self.records(before.step)
        keys = [self._echo(number) for number in range(KEYS_PRESSED)] if self.terminal else []
        self.stop()
        if after.running < len(self.prompts):
            raise RuntimeError(
                f"{self.name}: replies of {self.output_tokens} tokens ended within a turn of "
                f"{seconds:g} s, {after.running} of {len(self.prompts)} streamed to its end; "
                "--seconds must be less"
            )
        self.turns.append(Turn(before, after, painted, keys, records))

    def has_room(self, seconds: float) -> bool:
        """Whether the replies are long enough for a turn at twice the pace of the last."""
        if not self.turns:
            return True
        last = self.turns[-1]
        pace = (last.after.step - last.before.step) / (last.after.time - last.before.time)
        left = self.asked_at + self.output_tokens - last.after.step
        # All have streamed on while the last turn's keys were pressed.
        pressing = sum(key + 2 * KEY_SECONDS for key in last.keys)
        return 2 * pace * (LEAD_SECONDS + seconds + pressing) < left

    def begin(self, *, again: bool = False) -> None:
        """Have all chats stream."""
        self.go()
        if again:
            self.wait(lambda look: not look.running, "the end of all replies")
        # The first chat streams while the last is typed in.
        self.asked_at = self.look().step
        self.ask(again=again)
        everyone = len(self.prompts)
        self.wait(lambda look: look.running == everyone, "all to stream")
        self.stop()

    def windows(self) -> list[Window]:
        return [window_of(turn, waits=self.waits) for turn in self.turns]

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


@contextmanager
def program(
    name: str, model: Model, source: Path, compare: Mapping[str, str], options: argparse.Namespace
) -> Iterator[Program]:
    """Start a program and wait until it has loaded its model."""
    with launched(name, model, source, compare, options) as one:
        one.wait(lambda look: look.phase is EnginePhase.READY, "the model")
        if "nice" in compare:
            os.setpriority(os.PRIO_PROCESS, one.pid, int(compare["nice"]))
        yield one


@contextmanager
def launched(
    name: str, model: Model, source: Path, compare: Mapping[str, str], options: argparse.Namespace
) -> Iterator[Program]:
    """Start a program, which then loads its model. The one called headless has no interface."""
    headless = name == "headless"
    output_tokens = model.context - PROMPT_ROOM
    ours, theirs = Pipe()
    command = [sys.executable, "-m", "benchmarks.screen.streaming", "--pipe", str(theirs.fileno())]
    for setting, option in (("switch", "--switch-ms"), ("share", "--share")):
        if setting in compare:
            command += [option, compare[setting]]
    if model.depth is not None:
        command += ["--depth", str(model.depth), "--context", str(model.context)]
        command += ["--sessions", str(options.sessions), "--step-seconds", str(model.step_seconds)]
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
            "TUI_MODEL": str(source),
            "TUI_DEVICE": "cpu",
            "TUI_MAX_NUM_SEQS": str(options.sessions),
            "TUI_NUM_BLOCKS": str(options.sessions * model.context // BLOCK_SIZE + 64),
            "TUI_MAX_TOKENS": str(output_tokens),
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
        waits = model.depth is not None
        one = Program(name, process.pid, ours, terminal, prompts, output_tokens, waits)
        try:
            yield one
        finally:
            with suppress(ProcessLookupError):
                process.kill()
                one.go()
            process.wait()
            if terminal is not None:
                terminal.close()
            ours.close()
