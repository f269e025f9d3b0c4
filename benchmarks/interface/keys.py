"""keys: how long each of many keys takes from the terminal to its letter on the screen."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from benchmarks.screen.program import KEYS, LETTERS
from benchmarks.screen.terminal import Terminal

# Between two keys, at random: a pace of the screen's own is not to be met at its best moment.
LEAST_PAUSE, MOST_PAUSE = 0.03, 0.25
WAIT_SECONDS = 30.0


def press(terminal: Terminal, seed: int, goes_on: Callable[[int], bool]) -> list[float]:
    """Press letters, each erased again, and return the seconds that each took.

    Args:
        goes_on: asked with the number of keys so far.
    """
    chance = random.Random(seed)
    taken: list[float] = []
    while goes_on(len(taken)):
        taken.append(terminal.echo(LETTERS[len(taken) % len(LETTERS)], WAIT_SECONDS))
        terminal.type(KEYS["erase"])
        time.sleep(chance.uniform(LEAST_PAUSE, MOST_PAUSE))
    return taken
