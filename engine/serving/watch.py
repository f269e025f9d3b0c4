"""Watch: how long a call of the engine's threads is under way, and how long a step may be."""

from __future__ import annotations

from collections.abc import Callable

from engine.batch.shape import ModelShape

# Who owns an engine looks at it every second or so.
GAP_SECONDS = 10.0
# A step takes milliseconds, and the first one on a GPU some seconds. It is far longer only where a
# large model computes a full step on a few cores without native kernels: these give more than
# 10 GFLOP/s.
STEP_SECONDS = 300.0
SLOWEST_FLOPS = 1e10


class Watch:
    """Tells a call that hangs from one of a process that was stopped (SIGSTOP, a paused container,
    a debugger). There, too, the clock has gone on, but nobody has looked: such time is not counted.

    Any thread may look.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._looked_at = self._looking_since = clock()

    def seconds(self, began: float | None) -> float:
        """Look at what began at this time; 0 for None, which is nothing."""
        now = self._clock()
        if now - self._looked_at > GAP_SECONDS:
            self._looking_since = now
        self._looked_at = now
        return 0.0 if began is None else now - max(began, self._looking_since)


def step_limit(shape: ModelShape, tokens: int) -> float:
    """How many seconds a step of so many tokens may take before it is taken for one that hangs."""
    # Two for each weight and token, and as much again for attention over a long context.
    flops = 4 * shape.num_params * tokens
    return max(STEP_SECONDS, flops / SLOWEST_FLOPS)
