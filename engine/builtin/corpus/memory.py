"""Exchanges whose reply is found earlier in the chat."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from engine.builtin.corpus.knowledge import animal, country, word
from engine.builtin.corpus.names import made_up, someone
from engine.builtin.corpus.phrasing import Exchange, ask, table, upper_first, words
from engine.builtin.corpus.prose import fact, talk
from engine.builtin.corpus.sums import arithmetic

PET_NAMES = words("pet name")
_COUNTRIES, _ANIMALS = table("countries.txt"), table("animals.txt")
_SPELLED = table("words.txt", "spell")


class Detail(NamedTuple):
    """A fact that users state about themselves, and ask for later in the chat.

    Attributes:
        asked: frames of the question about it.
        answer: answer to that question.
    """

    said: str
    reply: str
    asked: str
    answer: str


def details(rng: Random) -> list[Detail]:
    """Facts that one user may state about himself or herself."""
    name, pet_name, town = someone(rng), rng.choice(PET_NAMES), rng.choice(_COUNTRIES)[1]
    if rng.random() < 0.3:
        pet_name = made_up(rng).capitalize()
    age, pet = rng.randint(6, 90), rng.choice(("dog", "cat", "rabbit", "horse", "parrot"))
    colour = rng.choice(("blue", "red", "green", "yellow", "black", "white", "purple", "orange"))
    return [
        Detail(
            ask(
                rng,
                "[my name is|i am called|i'm|call me|hi, my name is|hello, i am|hi, i am] {a}",
                exact=True,
                a=name,
            ),
            f"Nice to meet you, {name}! How can I help you?",
            "[what is|what's|do you know|do you remember|tell me|say] my name|who am i"
            "|[and|] what am i called",
            f"Your name is {name}.",
        ),
        Detail(
            ask(rng, "i have a {a} [called|named] {b}", exact=True, a=pet, b=pet_name),
            f"{pet_name} is a lovely name for a {pet}!",
            f"[what is|what's] [my {pet} called|the name of my {pet}|my {pet}'s name]",
            f"Your {pet} is called {pet_name}.",
        ),
        Detail(
            ask(rng, "i [live in|come from|am from] {a}", exact=True, a=town),
            f"{town} must be an interesting place to live.",
            "where do i [live|come from]|where am i from|[which|what] city am i from",
            f"You told me that you are from {town}.",
        ),
        Detail(
            ask(rng, "i am {a} [years old|]", exact=True, a=age),
            f"{age} is a good age!",
            "how old am i|[what is|what's] my age",
            f"You are {age} years old.",
        ),
        Detail(
            ask(
                rng,
                "[my favourite colour is|i like the colour|the colour i like best is] {a}",
                a=colour,
            ),
            f"{upper_first(colour)} is a beautiful colour!",
            "[what is|what's] my favourite colour|[which|what] colour do i like [best|]",
            f"Your favourite colour is {colour}.",
        ),
    ]


def recall(rng: Random) -> list[Exchange]:
    """The user states facts about himself or herself, and asks for them later in the chat."""
    told = details(rng)
    missing = "I do not know that. You have not told me yet."
    if rng.random() < 0.1:
        return [(ask(rng, rng.choice(told).asked), missing)]
    picked = rng.sample(told, rng.choice((1, 1, 1, 2, 3)))
    if rng.random() < 0.5 and told[0] not in picked:
        picked[0] = told[0]
    pairs = [(one.said, one.reply) for one in picked]
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        pairs += rng.choice((fact, talk, country, animal, word, arithmetic))(rng)
    rng.shuffle(picked)
    pairs += [(ask(rng, one.asked), one.answer) for one in picked]
    if rng.random() < 0.15:
        absent = [one for one in told if one not in picked]
        pairs.append((ask(rng, rng.choice(absent).asked), missing))
    return pairs


def echo(rng: Random) -> list[Exchange]:
    """Repeating words: the simplest exercise in copying from the context."""
    pool = [row[0] for row in _SPELLED] + [row[0] for row in _ANIMALS]
    words = [
        rng.choice(pool) if rng.random() < 0.6 else made_up(rng) for _ in range(rng.randint(1, 5))
    ]
    text = " ".join(words)
    asked = "[say|repeat|repeat after me:|say this:|please say|write|can you say|repeat this:] {a}"
    return [(ask(rng, asked, exact=True, a=text), f"{upper_first(text)}.")]
