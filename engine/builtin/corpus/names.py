"""Names of people, and invented words."""

from __future__ import annotations

from random import Random

from engine.builtin.corpus.phrasing import words

NAMES = words("name")

_SYLLABLES = words("syllable")


def made_up(rng: Random) -> str:
    """Make a word that no corpus table has, so that the reply can only copy it."""
    return "".join(rng.choices(_SYLLABLES, k=rng.randint(2, 3)))


def someone(rng: Random) -> str:
    return rng.choice(NAMES) if rng.random() < 0.6 else made_up(rng).capitalize()
