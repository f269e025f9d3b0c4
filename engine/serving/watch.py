"""Watch: measures calls of the engine's threads, and limits the time of a step."""

from __future__ import annotations

from collections.abc import Callable

from engine.batch.shape import ModelShape

# The owner of an engine reads the watch about every second.
GAP_SECONDS = 10.0
# A step takes milliseconds, and the first one on a GPU some seconds. It takes far longer only if a
# large model computes a full step on a few cores without native kernels, which still reach more
# than 10 GFLOP/s.
STEP_SECONDS = 300.0
SLOWEST_FLOPS = 1e10


class Watch:
    """Distinguishes a call that hangs from one in a process that was stopped (SIGSTOP, a paused
    container, a debugger). The clock runs on in a stopped process, but nothing reads the watch:
    such time is not counted.

    Any thread may read it.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._looked_at = self._looking_since = clock()

    def seconds(self, began: float | None) -> float:
        """Seconds since this time, without gaps between reads; 0 for None, which means no call."""
        now = self._clock()
        if now - self._looked_at > GAP_SECONDS:
            self._looking_since = now
        self._looked_at = now
        return 0.0 if began is None else now - max(began, self._looking_since)


def step_limit(shape: ModelShape, tokens: int) -> float:
    """Seconds after which a step of this many tokens counts as hanging."""
    # Two for each weight and token, and as many again for attention over a long context.
    flops = 4 * shape.num_params * tokens
    return max(STEP_SECONDS, flops / SLOWEST_FLOPS)
