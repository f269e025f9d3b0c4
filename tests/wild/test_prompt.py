"""The prompt deletes and passes characters as they are seen, not code points."""

from __future__ import annotations

import pytest

from tests.widgets.hosting import hosted, press
from widgets.chat.prompt import Prompt

CHARACTERS = [
    *("a", "é", "e\u0301", "o\u0323\u0302", "日", "한", "\u1112\u1161\u11ab", "नि", "ก็"),
    *(
        "😀",
        "👍🏽",
        "👩‍👩‍👧",
        "🇩🇪",
        "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
        "1️⃣",
        "❤️",
    ),
]


@pytest.mark.parametrize("character", CHARACTERS)
async def test_a_key_takes_a_whole_character(character: str) -> None:
    prompt = Prompt()
    async with hosted(prompt) as (app, _):
        prompt.load(f"x{character}{character}y", ())
        prompt.area.focus()
        await press(app, "left", "backspace")
        assert prompt.text == f"x{character}y"
        await press(app, "left", "delete")
        assert prompt.text == "xy"
        prompt.load(f"x{character}y\n{character}", ())
        await press(app, "home", "left", "left", "left", "right", "z")
        assert prompt.text == f"x{character}zy\n{character}"
