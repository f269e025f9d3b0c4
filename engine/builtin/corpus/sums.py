"""Exchanges about numbers, small enough to learn by example."""

from __future__ import annotations

from random import Random

from engine.builtin.corpus.phrasing import Exchange, ask, words

_GOODS = words("goods")
NUMBER_WORDS = words("number")


def arithmetic(rng: Random) -> list[Exchange]:
    """Sums, differences, products and quotients of small numbers, as digits or in a short story."""
    kind = rng.choice("++++--*/")
    if kind in "+-":
        top = rng.choice((10, 10, 10, 10, 10, 20, 20, 20, 99))
        a, b = rng.randint(0, top), rng.randint(0, top)
        if kind == "-":
            a, b = max(a, b), min(a, b)
        result = a + b if kind == "+" else a - b
    else:
        a, b = rng.randint(0, 10), rng.randint(1, 10)
        result = a * b
        if kind == "/":
            a, result = result, a
    spoken = {"+": "plus", "-": "minus", "*": "times", "/": "divided by"}[kind]
    slots: dict[str, object] = {"a": a, "b": b, "op": kind, "spoken": spoken}
    frames = (
        "[what is|what's|how much is|calculate|compute|] {a} {op} {b}"
        "|[what is|what's|how much is|] {a}{op}{b}|{a} {op} {b} =|{a}{op}{b}="
        "|[what is|what's|how much is|] {a} {spoken} {b}"
        "|[tell me|can you tell me|do you know] what {a} {spoken} {b} is"
    )
    if kind in "+-" and rng.random() < 0.1:
        return [_tale(rng, a, b, kind)]
    if max(a, b) <= 12 and rng.random() < 0.15:
        frames = "[what is|what's|how much is|] {a} {spoken} {b}"
        slots |= {"a": NUMBER_WORDS[a], "b": NUMBER_WORDS[b]}
    else:
        frames += {
            "+": "|add {a} and {b}|what is the sum of {a} and {b}"
            "|how much [do|are] {a} and {b} [make|]",
            "-": "|what is {a} take away {b}|subtract {b} from {a}",
            "*": "|multiply {a} by {b}|[what is|] {a} x {b}",
            "/": "|divide {a} by {b}",
        }[kind]
    return [(ask(rng, frames, exact=True, **slots), f"{a} {kind} {b} = {result}.")]


def _tale(rng: Random, a: int, b: int, kind: str) -> Exchange:
    goods = rng.choice(_GOODS)
    slots: dict[str, object] = {"a": a, "b": b, "goods": goods}
    if kind == "+":
        told = "i have {a} {goods} and [buy|get|find] {b} more. how many {goods} do i have [now|]"
        return ask(rng, told, exact=True, **slots), f"You have {a} + {b} = {a + b} {goods}."
    told = "i have {a} {goods} and [lose|sell|give away] {b}. how many {goods} [are left|do i have]"
    return ask(rng, told, exact=True, **slots), f"You have {a} - {b} = {a - b} {goods} left."


def number(rng: Random) -> list[Exchange]:
    """Counting, comparing, doubling, and questions beyond the model's arithmetic."""
    kind = rng.randrange(8)
    low, high = sorted(rng.sample(range(100), 2))
    if kind == 0:
        top = rng.choice((3, 4, 5, 6, 7, 8, 9, 10, 10, 10, 12, 15, 20, 20))
        text = NUMBER_WORDS[top] if top <= 12 and rng.random() < 0.3 else str(top)
        asked = "[count|can you count|please count] [to|up to|from 1 to|from one to] {a}"
        return [(ask(rng, asked, exact=True, a=text), _row(range(1, top + 1)))]
    if kind == 1:
        top = rng.choice((3, 5, 5, 10, 10))
        asked = "[count down from|count backwards from|start a countdown from] {a}"
        return [(ask(rng, asked, exact=True, a=top), _row(range(top, 0, -1)))]
    if kind == 2:
        asked = (
            "[what|which number] comes after {a}|what is the [next number after|number after] {a}"
        )
        return [(ask(rng, asked, exact=True, a=low), f"After {low} comes {low + 1}.")]
    if kind == 3:
        asked = "[which is|what is|which number is] [bigger|larger|greater|more], {a} or {b}"
        a, b = rng.sample((low, high), 2)
        reply = f"{high} is larger than {low}."
        return [(ask(rng, asked, exact=True, a=a, b=b), reply)]
    if kind == 4:
        asked = "[what is|what's|tell me|] [double|twice] {a}"
        return [(ask(rng, asked, exact=True, a=low % 50), f"{low % 50} * 2 = {low % 50 * 2}.")]
    if kind == 5:
        asked = "[is {a} even or odd|is {a} an even number|is {a} odd]"
        parity = "even" if high % 2 == 0 else "odd"
        return [(ask(rng, asked, exact=True, a=high), f"{high} is {parity}.")]
    if kind == 6:
        asked = "[what is|what's] half of {a}|half of {a}"
        even = low - low % 2
        return [(ask(rng, asked, exact=True, a=even), f"Half of {even} is {even // 2}.")]
    a, b = rng.randint(200, 99999), rng.randint(200, 99999)
    asked = "[what is|how much is|calculate|] {a} [+|-|*|/|times|plus|minus] {b}"
    return [
        (
            ask(rng, asked, exact=True, a=a, b=b),
            "These numbers are too large for me. I can only work with numbers below one hundred.",
        )
    ]


def _row(numbers: range) -> str:
    return ", ".join(map(str, numbers)) + "."
