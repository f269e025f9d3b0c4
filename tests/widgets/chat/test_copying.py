"""Copies of messages."""

from __future__ import annotations

import pytest

from tests.widgets.chat.test_transcript import CODE, entry, shown
from tests.widgets.hosting import Host, press, toasts
from widgets.chat.entry import Entry
from widgets.chat.transcript import Transcript


def wanted(app: Host) -> list[tuple[str, str]]:
    return [(m.text, m.what) for m in app.sent(Transcript.CopyWanted)]


async def test_without_a_current_message_the_last_code_and_the_last_reply_are_copied() -> None:
    async with shown(entry(0, "Hi"), entry(1, CODE), entry(3, "no code")) as (_, app):
        await press(app, "y", "c")
        assert wanted(app) == [("x = 1\ny = 2", "code block"), ("no code", "reply")]


async def test_of_the_current_message_one_block_after_the_other_is_copied() -> None:
    blocks = entry(1, CODE + "\n\n- a\n  ```\n  z\n  ```")
    async with shown(entry(0, "Hi"), blocks, entry(2, "more"), height=30) as (view, app):
        view.go_to("1")
        await press(app, "y", "y", "y", "c")
        assert wanted(app) == [
            ("x = 1\ny = 2", "code block 1 of 2"),
            ("z", "code block 2 of 2"),
            ("x = 1\ny = 2", "code block 1 of 2"),
            (blocks.text, "reply"),
        ]


async def test_a_message_without_code_is_copied_whole() -> None:
    called = entry(1, "See:", calls=(("clock", "{}"),), thinking="Hm.")
    answer = Entry(key="2", role="tool", author="tool", clock="", text="noon", tool="clock")
    async with shown(entry(0, "Hi\n```\nno code of mine\n```"), called, answer) as (view, app):
        for key in ("0", "1", "2"):
            view.go_to(key)
            await press(app, "y")
        assert wanted(app) == [
            ("Hi\n```\nno code of mine\n```", "message"),
            ("See:\n\nclock({})", "reply"),
            ("noon", "tool's answer"),
        ]


@pytest.mark.parametrize("key", ["y", "c"])
async def test_where_there_is_nothing_to_copy_it_says_so(key: str) -> None:
    async with shown(entry(0, "Hi"), entry(1, "", growing=True)) as (view, app):
        await press(app, key)
        view.go_to("1")
        await press(app, key)
        assert wanted(app) == []
        assert all(toast.startswith("There is no") for toast in toasts(app))
        assert len(toasts(app)) == 2
