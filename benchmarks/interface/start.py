"""start: how soon `tui` has painted its screen, and the last chat on it."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figure import Figure
from benchmarks.interface.stored import LAST_WORD, store_chats
from benchmarks.screen.terminal import Terminal

CHATS, MESSAGES = 1_000, 10_000
WAIT_SECONDS = 60.0
# The first key of the bar at the foot, which is part of the first frame.
FIRST = "Help"


def measure(rounds: int, size: tuple[int, int]) -> Iterator[Figure]:
    """Medians over so many starts, the first of which only warms the caches of the disk."""
    for chats, messages in ((0, 0), (CHATS, MESSAGES)):
        with tempfile.TemporaryDirectory() as folder:
            if chats:
                store_chats(Path(folder, "batchdeck.db"), chats, messages)
            starts = [_start(Path(folder), size, chats) for _ in range(rounds + 1)][1:]
        painted = 1000 * statistics.median(first for first, _ in starts)
        stored = f"{chats:,} chats, {messages:,} messages stored"
        yield Figure("start", "exec to the first screen", painted, "ms", stored).below(500)
        if chats:
            more = 1000 * statistics.median(last - first for first, last in starts)
            yield Figure("start", "until the last chat is open", more, "ms", stored).below(300)


def _start(folder: Path, size: tuple[int, int], chats: int) -> tuple[float, float]:
    """Seconds from exec to the first screen, and to the last chat's last message on it."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("TUI_")}
    env |= {"XDG_CONFIG_HOME": str(folder), "TUI_DATA_DIR": str(folder)}
    env |= {"TUI_LOG_FILE": f"{folder}/log"}
    terminal = Terminal([str(Path(sys.executable).with_name("tui"))], size, env)
    try:
        first = terminal.seen_at(FIRST, WAIT_SECONDS) - terminal.started
        last = terminal.seen_at(LAST_WORD, WAIT_SECONDS) - terminal.started if chats else first
        return first, last
    finally:
        terminal.close()
