"""Exchanges whose replies are in the text files, and stories composed from them."""

from __future__ import annotations

from random import Random

from engine.builtin.corpus.names import someone
from engine.builtin.corpus.phrasing import Exchange, Topic, ask, say, table, topics, words
from engine.builtin.corpus.sums import NUMBER_WORDS

HEROES = words("hero")
PLACES = words("place")
THINGS = words("thing")
FRIENDS = words("friend")
_TALK, _FACTS, _CODE = topics("talk.txt"), topics("facts.txt"), topics("code.txt")
_ANIMALS, _SUBJECTS = table("animals.txt"), words("unknown") + words("goods")
_EXPLAIN, _POEMS = topics("explain.txt"), topics("poems.txt")
_STORIES = topics("stories.txt")[0].replies
_LISTS = topics("lists.txt")
_NO_RHYME = (
    "You asked me for a rhyme today,\n"
    "But there is not much I can say\n"
    "About {x}, so I send you\n"
    "A smile, a song, a sky of blue."
)


def _topic(rng: Random, topic: Topic) -> list[Exchange]:
    return [(ask(rng, "|".join(topic.asks)), rng.choice(topic.replies))]


def talk(rng: Random) -> list[Exchange]:
    # The file begins with the most common messages.
    return _topic(rng, rng.choice(_TALK[:11] if rng.random() < 0.3 else _TALK))


def identity(rng: Random) -> list[Exchange]:
    return _topic(rng, rng.choice([topic for topic in _TALK if "batchdeck" in topic.replies[0]]))


def fact(rng: Random) -> list[Exchange]:
    return _topic(rng, rng.choice(_FACTS))


def code(rng: Random) -> list[Exchange]:
    return _topic(rng, rng.choice(_CODE))


def explanation(rng: Random) -> list[Exchange]:
    topic = rng.choice(_EXPLAIN)
    name = rng.choice(topic.names)
    frames = (
        "[what is|what's|what are] {x}|{x}|what does {x} mean|how does {x} work"
        "|[explain|describe|define] {x} [to me|for me|in simple words|simply|]"
        "|[can|could] you [explain|describe] {x} [to me|in simple words|]"
        "|[tell me|say something|talk] about {x}|[tell me|give me] something about {x}"
        "|what [do you know|can you tell me] about {x}"
        "|i want to [know|learn|know more] about {x}"
        "|[write|give me] [a short text|a paragraph|a few sentences|an explanation] [about|on] {x}"
    )
    if topic.asks and rng.random() < 0.4:
        frames = "|".join(topic.asks)
    asked = ask(rng, frames, x=name)
    pairs = [(asked, topic.replies[0])]
    if rng.random() < 0.4:
        again = ask(
            rng,
            "[tell me more|more|more please|go on|continue|and then|can you tell me more|"
            "tell me more about it|anything else|what else|give me more details|please continue]",
        )
        pairs.append((again, topic.more[0] if topic.more else f"That is all I know about {name}."))
    return pairs


def story(rng: Random) -> list[Exchange]:
    template = rng.choice(_STORIES)
    hero, friend = rng.choice(HEROES), rng.choice(FRIENDS)
    if rng.random() < 0.3:
        hero = rng.choice(_ANIMALS)[0]
    name = someone(rng)
    frame, named = rng.choice(
        (
            ("[tell me|write|write me|tell] a [short|little|nice|] story", False),
            (
                "[tell me|write|write me|] a [short|long|funny|] story"
                " about a [brave|little|clever|] {hero}",
                False,
            ),
            ("[can|could] you [tell|write] me a story about a {hero}", False),
            ("[i want|i want to hear|i would like|please tell] a story about a {hero}", False),
            ("[tell me|write] a story about a {hero} [called|named] {name}", True),
            ("a [bedtime|short|] story please|story about a {hero} [please|]", False),
            ("[once upon a time|tell me a bedtime story|do you know a story|another story]", False),
        )
    )
    slots = {"hero": hero, "name": name}
    reply = say(
        rng, template, place=rng.choice(PLACES), thing=rng.choice(THINGS), friend=friend, **slots
    )
    reply = reply.replace(" a owl", " an owl").replace(" a elephant", " an elephant")
    reply = reply.replace("A owl", "An owl").replace("A elephant", "An elephant")
    pairs = [(ask(rng, frame, exact=named, **slots), reply)]
    follow = rng.random()
    if follow < 0.15:
        asked = ask(rng, "[what was|what is] the name of the [{hero}|hero]", hero=hero)
        pairs.append((asked, f"The {hero} was called {name}."))
    elif follow < 0.3:
        asked = ask(
            rng, "who [helped|was the friend of|met|was with] {name}", exact=True, name=name
        )
        pairs.append((asked, f"It was the {friend}."))
    return pairs


def poem(rng: Random) -> list[Exchange]:
    topic = rng.choice(_POEMS)
    name, reply = rng.choice(topic.names), topic.replies[0]
    if rng.random() < 0.15:
        name = rng.choice(_SUBJECTS)
        reply = _NO_RHYME.format(x=name)
    frames = (
        "[write|write me|tell me|give me|compose] a [short|little|] [poem|poem|rhyme] about {x}"
        "|[can|could] you write a [short|] poem about {x}|a poem about {x}"
        "|i [want|would like] a poem about {x}|poem about {x}"
    )
    if reply == topic.replies[0]:
        frames += "|[write|tell me|write me|make] a [short|] poem"
    return [(ask(rng, frames, x=name), reply)]


def listing(rng: Random) -> list[Exchange]:
    topic = rng.choice(_LISTS)
    items = topic.replies[0].split(", ")
    count = rng.randint(2, min(8, len(items)))
    number = rng.choice((NUMBER_WORDS[count], str(count)))
    name = rng.choice(topic.names)
    if rng.random() < 0.6:
        frames = (
            "[name|list|give me|tell me|write] {n} {x}|[write|make|give me] a list of {n} {x}"
            "|[can you|please] [name|list] {n} {x}|i need {n} {x}"
        )
        opening = f"Here are {NUMBER_WORDS[count]} {topic.names[0]}:"
    else:
        count = min(5, len(items))
        frames = (
            "[write|make|give me|show me] a list of {x}"
            "|[name|list|tell me|give me] [some|a few] {x}|what are some {x}|which {x} do you know"
        )
        opening = f"Here are some {topic.names[0]}:"
    pairs = [
        (
            ask(rng, frames, n=number, x=name),
            opening + "\n\n" + "\n".join(f"- {item}" for item in items[:count]),
        )
    ]
    if count < len(items) and rng.random() < 0.15:
        rest = items[count:]
        pairs.append(
            (
                ask(rng, "[more|some more|give me more|any others|what else|tell me more]"),
                f"Here are more {topic.names[0]}:\n\n" + "\n".join(f"- {item}" for item in rest),
            )
        )
    return pairs
