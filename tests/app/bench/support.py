"""A run of three requests whose every figure can be worked out by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from app.bench.measurement import Measurement
from app.bench.traffic import Script, ScriptedTraffic
from engine.api.sampling import SamplingParams
from engine.api.telemetry import StepRecord
from engine.driving.drive import drive
from engine.driving.traffic import Task
from tests.support.clock import VirtualClock
from tests.support.harness import CoreHarness


class DriveClock(VirtualClock):
    """A virtual clock that `drive` can wait on."""

    def sleep_until(self, moment: float) -> None:
        self.now = max(self.now, moment)


def task(name: str, arrival: float, prompt: int, output: int) -> Script:
    sampling = SamplingParams(temperature=0.0, min_tokens=output, max_tokens=output)
    ids = [ord(name)] * prompt
    return Script(Task(request_id=name, arrival=arrival, prompt_token_ids=ids, sampling=sampling))


# Each step takes 1 s. a: tokens at 1, 2, 3. b comes while the first step runs: its token is there
# at 2. c comes when all is idle: tokens at 11 and 12.
TASKS = (task("a", 0.0, 4, 3), task("b", 0.5, 4, 1), task("c", 10.0, 2, 2))


def measure(
    targets: Mapping[str, float],
    scripts: tuple[Script, ...] = TASKS,
    on_record: Callable[[StepRecord], None] | None = None,
) -> tuple[Measurement, float]:
    """The measurement, and the seconds that the run took. Blocks are of 4 tokens."""
    clock = DriveClock()
    harness = CoreHarness(clock=clock)
    harness.runner.seconds_per_step = 1.0
    measured = Measurement(harness.core, clock(), targets, on_record)
    seconds = drive(harness.core, ScriptedTraffic(scripts), clock, measured)
    measured.close()
    return measured, seconds
