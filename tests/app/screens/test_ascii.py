"""`--ascii`: nothing on the screen but ASCII, dialogs and palette included."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.app.screens.stage import REPLIES, staged


@pytest.mark.parametrize(
    "keys", [(), ("f1",), ("f3",), ("f9",), ("ctrl+p",), ("f2", "p"), ("f2", "6")], ids=str
)
async def test_all_that_is_drawn_is_ascii(keys: tuple[str, ...], tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, ascii=True) as stage:
        await stage.send("code")
        await stage.turn(6)
        await stage.press(*keys)
        await stage.app.workers.wait_for_complete()
        stage.app.notify("Copied the “reply” …")
        await stage.settle()
        drawn = "".join(
            segment.text
            for strip in stage.app.screen._compositor.render_strips()
            for segment in strip
        )
        assert {character for character in drawn if not character.isascii()} == set()


async def test_what_people_write_stays_as_it_is(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, ascii=True) as stage:
        await stage.press(*"дом")
        assert "дом" in await stage.screen()
