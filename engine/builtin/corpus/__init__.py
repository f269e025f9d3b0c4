"""The chats that the built-in model is trained on.

All of it is our own text: hand-written questions, answers, tables and templates under ``text/``,
combined at random. The same seed gives the same chats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from engine.builtin.corpus import knowledge, memory, prose, sums
from engine.builtin.corpus.names import someone
from engine.builtin.corpus.phrasing import Exchange, ask, say

Source = Callable[[Random], list[Exchange]]
"""Writes one question and its answer, or a few that belong together."""

Message = dict[str, str]
"""``{"role": "system" | "user" | "assistant", "content": ...}``, for chat templates."""

# Shares of the exchanges. Sources with more distinct content, and those that need
# many examples before they generalise (arithmetic, copying), get more.
_MIX: tuple[tuple[Source, float], ...] = (
    (prose.talk, 12),
    (prose.identity, 3),
    (prose.fact, 13),
    (knowledge.country, 10),
    (knowledge.animal, 7),
    (knowledge.word, 9),
    (prose.explanation, 8),
    (sums.arithmetic, 22),
    (sums.number, 4),
    (memory.echo, 5),
    (prose.listing, 6),
    (prose.story, 5),
    (prose.poem, 2),
    (prose.code, 5),
    (knowledge.unknown, 5),
    (memory.recall, 10),
)
_SOURCES = tuple(source for source, _ in _MIX)
_SHARES = tuple(share for _, share in _MIX)
_TURNS = (1, 1, 1, 1, 1, 2, 2, 2, 3, 4)
_LONG_CHAT = 0.003  # share of chats of 15 to 30 exchanges, so that late positions are trained too

_NEUTRAL_PROMPTS = (
    "You are a helpful assistant."
    "|You are a [friendly|polite|helpful|kind] [assistant|chat assistant|model]."
    "|You are batchdeck's built-in model."
    "|Answer [briefly|clearly|politely|in simple words]."
    "|You are a helpful assistant. Answer [briefly|the questions of the user|in English]."
)


@dataclass(frozen=True, slots=True)
class Chat:
    """One conversation: an optional system prompt and its exchanges."""

    system: str | None
    exchanges: tuple[Exchange, ...]

    def messages(self) -> list[Message]:
        """The chat as messages for the chat template."""
        found = [] if self.system is None else [{"role": "system", "content": self.system}]
        for asked, reply in self.exchanges:
            found.append({"role": "user", "content": asked})
            found.append({"role": "assistant", "content": reply})
        return found


def chats(seed: int) -> Iterator[Chat]:
    """An endless stream of chats, the same for the same `seed`."""
    rng = Random(seed)
    while True:
        yield _chat(rng)


def _chat(rng: Random) -> Chat:
    turns = rng.randint(15, 30) if rng.random() < _LONG_CHAT else rng.choice(_TURNS)
    system, pairs, closed = _opening(rng)
    while len(pairs) < turns:
        source = rng.choices(_SOURCES, _SHARES)[0]
        if source in closed:
            continue
        if source is memory.recall:
            closed |= {memory.recall}
        pairs += source(rng)
    return Chat(system, tuple(pairs))


def _opening(rng: Random) -> tuple[str | None, list[Exchange], frozenset[Source]]:
    """A system prompt, the questions that follow from it, and the sources it would contradict."""
    roll = rng.random()
    if roll < 0.65:
        return None, [], frozenset()
    if roll < 0.85:
        return say(rng, _NEUTRAL_PROMPTS), [], frozenset()
    name = someone(rng)
    closed = frozenset({prose.talk, prose.identity, memory.recall})
    if roll < 0.93:
        asked = ask(rng, "[who are you|what is your name|what's your name|what are you called]")
        system = say(rng, "[You are|Your name is] {a}, a [helpful|friendly] assistant.", a=name)
        return system, [(asked, f"I am {name}, your assistant. How can I help you?")], closed
    asked = ask(rng, "[what is my name|who am i|do you know my name|what's my name]")
    system = say(rng, "[The name of the user is|The user is called|You talk to] {a}.", a=name)
    return system, [(asked, f"Your name is {name}.")], closed
