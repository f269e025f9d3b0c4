"""The watchdog ends a process that ignores a signal, by signals to this one."""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from app.process import watchdog
from app.process.watchdog import Watchdog, last_call

# A test that fails takes as long as this.
PATIENCE = 20.0
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def deaf(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The main thread takes no notice of a signal, as where it hangs."""
    before = {number: signal.signal(number, lambda *_: None) for number in ENDS}
    monkeypatch.setattr(watchdog, "PATIENCE_SECONDS", 0.0)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Left:
    """A process that a watchdog has ended, in place of this one."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.codes: queue.Queue[int] = queue.Queue()

    def report(self, how: str) -> str:
        self.told.append(how)
        return f"it hung ({how})"

    @property
    def code(self) -> int:
        return self.codes.get(timeout=PATIENCE)


@pytest.mark.parametrize("number", ENDS)
def test_what_does_not_end_is_ended_with_the_code_of_the_signal(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    left = Left()
    with Watchdog(left.report, leave=left.codes.put):
        signal.raise_signal(number)
        assert left.code == 128 + number
    assert left.told == [f"it did not end within 0 s of {number.name}"]
    assert capfd.readouterr().err == f"tui: it hung ({left.told[0]})\n"


def test_what_is_to_be_saved_is_saved_though_other_calls_hang_or_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watchdog, "SAVE_SECONDS", 0.4)
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    left, saved, never = Left(), list[str](), threading.Event()
    with Watchdog(left.report, leave=left.codes.put), ExitStack() as stack:
        for call in (never.wait, lambda: 1 / 0, lambda: saved.append("chat")):
            stack.enter_context(last_call(call))
        with last_call(lambda: saved.append("what is over")):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        assert left.code == 143
    assert saved == ["chat"]
    assert left.told
    never.set()


def test_what_ends_by_itself_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "PATIENCE_SECONDS", PATIENCE)
    left = Left()
    with Watchdog(left.report, leave=left.codes.put):
        signal.raise_signal(signal.SIGTERM)
    assert left.codes.empty()
    assert signal.set_wakeup_fd(-1) == -1
    assert not [t for t in threading.enumerate() if t.name == "watchdog"]


def test_what_drains_may_take_its_time_until_the_second_signal() -> None:
    left = Left()
    with Watchdog(left.report, signals=2, leave=left.codes.put):
        signal.raise_signal(signal.SIGTERM)
    assert left.codes.empty()
    with Watchdog(left.report, signals=2, leave=left.codes.put):
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGWINCH)  # is no wish to end
        signal.raise_signal(signal.SIGINT)
        assert left.code == 130
