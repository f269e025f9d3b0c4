"""Exchanges from tables of facts, and questions that the tables cannot answer."""

from __future__ import annotations

from random import Random

from engine.builtin.corpus.names import made_up, someone
from engine.builtin.corpus.phrasing import Exchange, ask, say, table, upper_first, words

_COUNTRIES, _ANIMALS = table("countries.txt"), table("animals.txt")
_WORDS = {
    section: table("words.txt", section)
    for section in ("opposite", "colour", "translate", "plural", "past", "spell", "rhyme")
}
_UNKNOWN = words("unknown")


def country(rng: Random) -> list[Exchange]:
    place, capital, continent, language = rng.choice(_COUNTRIES)
    roll = rng.random()
    if roll < 0.55:
        frames = (
            "[what is|what's|tell me|name|do you know|give me] the capital [city|] of {place}"
            "|what is the capital of {place}|[can|could] you tell me the capital of {place}"
            "|[which|what] city is the capital of {place}|what is {place}'s capital"
            "|{place} capital"
        )
        reply = f"The capital of {place} is {capital}."
    elif roll < 0.7:
        frames = (
            "{capital} is the capital of [which|what] country|where is {capital}"
            "|in which country is {capital}"
        )
        owner = next(row[0] for row in _COUNTRIES if row[1] == capital)
        reply = f"{capital} is the capital of {owner}."
    elif roll < 0.85:
        frames = (
            "[where is|on which continent is|where in the world is] {place}"
            "|[what|which] continent is {place} in"
        )
        reply = f"{upper_first(place)} is in {continent}."
    else:
        frames = (
            "[what|which] language [do people|do they] speak in {place}"
            "|[what|which] language is spoken in {place}"
        )
        reply = f"In {place} people speak {language}."
    pairs = [(ask(rng, frames, place=place, capital=capital), reply)]
    if roll < 0.55 and rng.random() < 0.3:
        other = rng.choice(_COUNTRIES)
        asked = ask(rng, "[and|and of|what about|how about] {place}", place=other[0])
        pairs.append((asked, f"The capital of {other[0]} is {other[1]}."))
    return pairs


def animal(rng: Random) -> list[Exchange]:
    name, kind, legs, sound, young, food, home, known = rng.choice(_ANIMALS)
    one, many = _article(name), _plural(name)
    cases = (
        (
            "[tell me|say something|talk] about [{one}|{many}]|[what is|what's|describe] {one}",
            f"{upper_first(one)} is {_article(kind)}. It has {legs} legs and lives {home}. "
            f"It eats {food}. {known}",
        ),
        (
            "how many legs [does {one}|do {many}] have|how many legs has {one}",
            f"{upper_first(one)} has {legs} legs.",
        ),
        (
            "what [sound|noise] [does {one}|do {many}] make|what [does {one}|do {many}] say",
            f"{upper_first(one)} {sound}.",
        ),
        (
            "what is a [baby|young] {name} called|what do you call a baby {name}",
            f"A young {name} is called {_article(young)}.",
        ),
        (
            "what [does {one}|do {many}] eat|what do you feed {one}",
            f"{upper_first(one)} eats {food}.",
        ),
        (
            "where [does {one}|do {many}] live|where can i find {one}",
            f"{upper_first(one)} lives {home}.",
        ),
        ("[tell me|give me] a fact about [{one}|{many}]|what is special about {one}", known),
        ("is {one} a [mammal|bird|fish|insect]|what kind of animal is {one}", ""),
    )
    frames, reply = rng.choice(cases)
    asked = say(rng, frames, one=one, many=many, name=name)
    if not reply:
        reply = f"{upper_first(one)} is {_article(kind)}."
        guess = asked.rsplit(" ", 1)[1]
        if asked.startswith("is "):
            reply = f"{'Yes' if guess == kind else 'No'}, {reply[0].lower()}{reply[1:]}"
    return [(ask(rng, asked), reply)]


def word(rng: Random) -> list[Exchange]:
    section = rng.choice(
        (
            "opposite",
            "opposite",
            "colour",
            "translate",
            "translate",
            "plural",
            "past",
            "spell",
            "rhyme",
        )
    )
    row = rng.choice(_WORDS[section])
    first, rest = row[0], row[1:]
    if section == "opposite":
        if rng.random() < 0.5 and sum(rest[0] in pair for pair in _WORDS[section]) == 1:
            first, rest = rest[0], (first,)
        frames = (
            "[what is|what's|tell me|give me|name] the opposite of {a}|opposite of {a}"
            "|what is the [contrary|antonym] of {a}"
        )
        reply = f"The opposite of {first} is {rest[0]}."
    elif section == "colour":
        frames = (
            "[what|which] [colour|color] is {a}|what is the [colour|color] of {a}"
            "|[tell me|name] the [colour|color] of {a}"
        )
        reply = f"{upper_first(first)} is {rest[0]}."
    elif section == "translate":
        at = rng.randrange(4)
        language = ("French", "German", "Spanish", "Italian")[at]
        frames = (
            f"[how do you say|how do i say|what is|say|translate|what's] {{a}} in {language}"
            f"|translate {{a}} [into|to] {language}|what is the {language} word for {{a}}"
        )
        reply = f"In {language}, {first} is *{rest[at]}*."
    elif section == "plural":
        frames = "[what is|what's|tell me] the plural of {a}|plural of {a}"
        reply = f"The plural of {first} is {rest[0]}."
    elif section == "past":
        frames = (
            "[what is|what's|tell me] the past tense of {a}|past tense of {a}"
            "|what is the past of {a}"
        )
        reply = f"The past tense of {first} is {rest[0]}."
    elif section == "spell":
        frames = "[how do you spell|how do i spell|spell|spell the word|can you spell] {a}"
        reply = f"{upper_first(first)} is spelled {'-'.join(first.upper())}."
    else:
        if rng.random() < 0.5:
            first, rest = rest[0], (first,)
        frames = (
            "what rhymes with {a}"
            "|[tell me|give me|find|name] a [word that rhymes with|rhyme for] {a}"
        )
        reply = f"{upper_first(rest[0])} rhymes with {first}."
    return [(ask(rng, frames, a=first), reply)]


def unknown(rng: Random) -> list[Exchange]:
    """Questions that the model cannot answer, and an honest reply that names their subject."""
    kind = rng.randrange(6)
    if kind == 0:
        name = rng.choice(_UNKNOWN) if rng.random() < 0.6 else made_up(rng)
        frames = (
            "[what is|what are|explain|tell me about|what do you know about|how does] {a}"
            "|[can you explain|describe|i want to know about|what do you think about] {a}"
        )
        reply = f"I am a small model and I do not know enough about {name}."
        return [(ask(rng, frames, exact=True, a=name), reply)]
    if kind == 1:
        person = f"{someone(rng)} {made_up(rng).capitalize()}"
        frames = "[who is|who was|tell me about|do you know] {a}"
        reply = f"I am sorry, I do not know who {person} is."
        return [(ask(rng, frames, exact=True, a=person), reply)]
    if kind == 2:
        place = made_up(rng).capitalize()
        frames = "what is the capital of {a}|where is {a}|what do people speak in {a}"
        reply = f"I am sorry, I do not know a place called {place}."
        return [(ask(rng, frames, exact=True, a=place), reply)]
    if kind == 3:
        frames = (
            "what time is it|what is the time|what day is it [today|]|what is the date [today|]"
            "|what is the weather like [today|]|how is the weather|will it rain tomorrow"
            "|is it raining|what is in the news|what happened today|what is new in the world"
            "|who won the match|who won yesterday|who will win the election"
            "|who is the president|who is the prime minister|what is the price of gold"
        )
        reply = (
            "I cannot know that. I run on this machine alone, without the internet, a clock or "
            "news."
        )
        return [(ask(rng, frames), reply)]
    if kind == 4:
        noise = " ".join(made_up(rng) for _ in range(rng.randint(1, 4)))
        return [(noise, "I am sorry, I do not understand that. Please ask in other words.")]
    frames = (
        "[how many people live in|what is the population of|how large is|what is the history of]"
        " {a}|[who is the king of|who governs|what is the flag of|how do i get to] {a}"
    )
    place = rng.choice(_COUNTRIES)[0] if rng.random() < 0.7 else made_up(rng).capitalize()
    reply = f"I am a small model and I do not know that about {place}."
    return [(ask(rng, frames, exact=True, a=place), reply)]


def _article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _plural(noun: str) -> str:
    irregular = {"mouse": "mice", "wolf": "wolves", "sheep": "sheep", "salmon": "salmon"}
    if noun in irregular:
        return irregular[noun]
    if noun.endswith("y") and noun[-2] not in "aeo":
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith(("x", "s", "ch")) else "s")
