"""How the messages of a chat look. `pytest --snapshot-update` accepts what they look like now."""

from __future__ import annotations

import json
from typing import Protocol

import pytest
from textual.app import App
from textual.pilot import Pilot

from tests.widgets.chat.test_transcript import entry
from tests.widgets.hosting import Host, hosted, is_grey, press, rows
from widgets.chat.entry import Entry
from widgets.chat.transcript import Transcript
from widgets.glyphs import ASCII, UNICODE

CALLS = (("clock", '{"zone": "Zürich"}'), ("find", json.dumps({"text": "word " * 20})))
CHAT = (
    entry(0, "What is the time?", attachments=(("notes.txt", "one\n" * 300),), branch=(2, 3)),
    entry(1, "Let me see.", calls=CALLS, note="18 tok · ttft 110ms · 47 tok/s"),
    Entry(key="2", role="tool", author="tool", clock="14:02", text="14:02", tool="clock"),
    Entry(key="4", role="tool", author="tool", clock="14:02", text="found\n" * 9, tool="find"),
    entry(
        5,
        "It is **14:02**:\n\n```python\n# now\ndef f(x=1):\n    return 'a'\n```",
        thinking="So it is.",
        thought_tokens=412,
        thought_seconds=8.2,
        note="stopped · 47 tok",
    ),
    entry(7, "", thinking="And", thought_tokens=9, thought_seconds=0.4, growing=True),
)


class Compare(Protocol):
    """The fixture of pytest-textual-snapshot."""

    def __call__(
        self, app: App[None], *, terminal_size: tuple[int, int], run_before: object = None
    ) -> bool: ...


async def opened(transcript: Transcript) -> None:
    """Show the chat, unfold what is folded, and go to what was searched for."""
    transcript.hint("y")
    transcript.show("c", CHAT)
    transcript.focus()
    await press(transcript.app, "up", "up", "enter", "t")
    transcript.go_to("5", ["14", "now"])


def test_messages(snap_compare: Compare) -> None:
    transcript = Transcript()

    async def play(_: Pilot[None]) -> None:
        await opened(transcript)

    assert snap_compare(Host(transcript), terminal_size=(80, 40), run_before=play)


async def test_messages_in_ascii_and_without_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    for glyphs in (UNICODE, ASCII):
        monkeypatch.setenv("NO_COLOR", "1")  # which an app takes out of the environment
        async with hosted(transcript := Transcript(glyphs), 80, 40) as (app, _):
            await opened(transcript)
            assert is_grey(app)
            written.append(rows(transcript))
    in_unicode, in_ascii = written
    assert "".join(in_ascii).isascii()
    assert [bool(row) for row in in_ascii] == [bool(row) for row in in_unicode]
