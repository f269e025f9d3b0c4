"""Names of people, and words that nobody has seen before."""

from __future__ import annotations

from random import Random

from engine.builtin.corpus.phrasing import words

NAMES = words("name")

_SYLLABLES = words("syllable")


def made_up(rng: Random) -> str:
    """A word that no corpus table holds, so that the reply can only copy it."""
    return "".join(rng.choices(_SYLLABLES, k=rng.randint(2, 3)))


def someone(rng: Random) -> str:
    return rng.choice(NAMES) if rng.random() < 0.6 else made_up(rng).capitalize()
