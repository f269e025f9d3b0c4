"""Paced: a runner whose steps are slow enough to watch."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from app.process.serving import load_model
from engine.api.client import LoadRequest
from engine.batch.plan import Runner, StepPlan, StepResult
from engine.serving.loading import LoadedModel, Progress

# 20 tokens a second for each chat, the speed of a large model.
STEP_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class _Handle:
    handle: object
    submitted: float


class Paced:
    """A `Runner` around another one, which makes each step take a while.

    The built-in model is so small that its replies would be complete before anyone could look.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    @property
    def depth(self) -> int:
        return self._runner.depth

    def submit(self, plan: StepPlan) -> _Handle:
        return _Handle(self._runner.submit(plan), time.monotonic())

    def result(self, handle: object) -> StepResult:
        assert isinstance(handle, _Handle)
        result = self._runner.result(handle.handle)
        time.sleep(max(0.0, handle.submitted + STEP_SECONDS - time.monotonic()))
        return result


def load_paced(request: LoadRequest, progress: Progress) -> LoadedModel:
    """Load a model that computes at the pace of the demonstration."""
    model = load_model(request, progress)
    return replace(model, runner=Paced(model.runner))
