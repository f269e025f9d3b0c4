"""The prompt and lines of text delete and pass characters as they are seen, not code points."""

from __future__ import annotations

import pytest
from textual.widgets import Input, TextArea

from app.screens.dialogs.dialog import Entry
from app.screens.dialogs.edit_settings import SystemPrompt
from tests.widgets.hosting import hosted, press
from widgets.chat.prompt import Prompt, PromptArea
from widgets.line_input import LineInput, LinesInput
from widgets.panels.field import Field

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


@pytest.mark.parametrize("character", CHARACTERS)
async def test_a_key_takes_a_whole_character_of_a_line(character: str) -> None:
    line = Entry()
    async with hosted(line) as (app, _):
        line.value = f"x{character}{character}y"
        line.focus()
        await press(app, "end", "left", "backspace")
        assert line.value == f"x{character}y"
        await press(app, "left", "delete")
        assert line.value == "xy"
        line.value = f"x{character}y{character}"
        await press(app, "home", "right", "shift+right", "z", "right", "right", "right", "!")
        assert line.value == f"xzy{character}!"
        await press(app, "left", "shift+left", "backspace", "backspace", "home", "backspace")
        assert line.value == "xz!"
        await press(app, "end", "delete", "left", "left", "left", "left", "delete")
        assert line.value == "z!"


def test_every_text_is_edited_so() -> None:
    """Those of dialogs and of panels."""
    for base, ours in ((Input, LineInput), (TextArea, LinesInput)):
        own = {o for o in base.__subclasses__() if o.__module__.startswith(("app.", "widgets."))}
        assert own == {ours}
    assert issubclass(Entry, LineInput)
    assert issubclass(Field, LineInput)
    assert issubclass(PromptArea, LinesInput)
    assert issubclass(SystemPrompt, LinesInput)
