"""Words: the meanings of words on the dashboard that a reader cannot guess."""

from __future__ import annotations

GLOSSES = {
    "TTFT": "time to first token, from a request's arrival on",
    "TPOT": "time per output token after the first, the mean over a reply",
    "ITL": "inter-token latency, the gap between one token of a reply and the next",
    "queue": "the time from a request's arrival to its first step",
    "p50": "half of the samples are below it",
    "p99": "99 of 100 samples are below it",
    "good": "the share of requests that met both targets; late ones count as missed at once",
    "prefix hit": "the share of prompt tokens that were found in the cache, since the start",
    "preempt": "a running request loses its blocks to another and waits again",
    "batch": "how many sequences were computed in a step",
    "budget": "the most tokens that a step may compute",
    "padding": "prompt tokens that a padded batch would compute in vain",
    "ended": "ended members of a batch that keep their slots",
    "waste": "the share of allocated token slots that hold nothing",
    "CPU": "how much of a core this program uses",
    "RAM": "the memory that all programs of the machine use",
    "RSS": "the memory that this program uses",
    "lag": "how late the screen is",
    "live": "accepted requests that have not ended, including waiting ones",
    "no token": "those of them that have no token yet",
    "open": "open connections of clients, including idle ones",
    "unacked": "endings not yet confirmed by the broker",
}


def glosses(*words: str) -> dict[str, str]:
    """The words with their meanings."""
    return {word: GLOSSES[word] for word in words}


def gloss(*words: str) -> str:
    """The words with their meanings, as one line of parts."""
    return " · ".join(f"{word}: {GLOSSES[word]}" for word in words)
