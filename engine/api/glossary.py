"""Glossary: the meanings of the words on the dashboard, for its help, its panels and the page.

A figure has one word everywhere, and its explanation is here alone. Policies are explained by their
own descriptions (`engine.scheduling.policies`), and knobs by theirs (`engine.api.knobs`).
"""

from __future__ import annotations

GLOSSES = {
    # The engine's throughput and load.
    "tok/s": "output tokens a second of all requests, over the last 10 s or since it was idle",
    "prefill": "prompt tokens are computed, before the first token of a reply",
    "decode": "tokens of replies are computed, usually one a step for each request",
    "running": "requests in the batch, of which steps compute tokens; short: run",
    "waiting": "requests that are not in the batch yet, or no longer; short: wait",
    "policy": "decides how many tokens each request gets in a step",
    "step": "one pass of the model over the batch",
    "batch": "how many sequences were computed in a step",
    "budget": "the most tokens that a step may compute",
    "padding": "prompt tokens that a padded batch would compute in vain",
    "ended": "ended members of a batch that keep their slots",
    # Latencies.
    "TTFT": "time to first token, from a request's arrival on",
    "TPOT": "time per output token after the first, the mean over a reply",
    "ITL": "inter-token latency, the gap between one token of a reply and the next",
    "queue": "the time from a request's arrival to its first step",
    "E2E": "end to end, from a request's arrival to its last token",
    "p50": "half of the samples are below it",
    "p99": "99 of 100 samples are below it",
    "n": "the number of samples",
    "good": "the share of requests that met both targets; late ones count as missed at once",
    "late": "unfinished requests that have missed a target already",
    # The KV cache.
    "KV": "the share of the KV cache that requests hold; the rest is free or evictable",
    "blk": "blocks of the KV cache, each with the keys and values of a few tokens",
    "used": "blocks that one request holds",
    "shared": "blocks that several requests hold, because their prompts begin alike; short: shrd",
    "reserved": "blocks that are held for later tokens of a request; short: resv",
    "cached": "blocks of ended requests, kept for prompts that begin alike until they are evicted",
    "pinned": "cached blocks that are never evicted",
    "free": "blocks that hold nothing",
    "waste": "the share of allocated token slots that hold nothing",
    "prefix hit": "the share of prompt tokens that were found in the cache, since the start",
    "preempted": "how often a running request lost its blocks to another and waited again",
    # A chat and its requests.
    "prompt": "tokens of a request's prompt",
    "tok": "output tokens of a reply so far",
    "src": "where the request came from: this screen, HTTP or MQTT",
    "ctx": "tokens of the chat with the draft, of the most that fit; ~ is an estimate",
    "temp": "temperature: at 0 the likeliest token is taken, higher values vary replies more",
    # The machine.
    "CPU": "how much of a core this program uses",
    "RAM": "the memory that all programs of the machine use",
    "RSS": "the memory that this program uses",
    "lag": "how late the screen is",
    "fps": "how often the screen is repainted in a second",
    # The gateways.
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
