"""`--ascii`: nothing on the screen but ASCII, dialogs and palette included."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.app.screens.stage import REPLIES, staged


async def test_all_that_is_drawn_is_ascii(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, ascii=True, size=(80, 24), notices=True) as stage:
        await stage.send("code")
        await stage.turn(6)
        stage.app.notify("Copied the “reply” …")
        for size in ((80, 24), (120, 40), (160, 48), (200, 60)):
            await stage.pilot.resize_terminal(*size)
            for keys in ("", "f1", "f3", "f9", "ctrl+p", "f2", "p", "6"):
                await stage.press(*filter(None, [keys]))
                await stage.app.workers.wait_for_complete()
                drawn = await stage.screen()
                assert (stage.app.screen is stage.deck) == (keys in ("", "f2", "6")), (size, keys)
                assert {one for one in drawn if not one.isascii()} == set(), (size, keys)
                if keys not in ("f2", "6"):
                    await stage.press(*filter(None, [keys and "escape"]))
            await stage.press("f2")


async def test_what_people_write_stays_as_it_is(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, ascii=True) as stage:
        await stage.press(*"дом")
        assert "дом" in await stage.screen()


@pytest.mark.parametrize(
    ("terminal", "stated", "is_ascii"),
    [("linux", None, True), ("linux", False, False), ("xterm-256color", None, False)],
)
async def test_the_console_of_linux_gets_ascii_unless_that_is_refused(
    terminal: str,
    stated: bool | None,
    is_ascii: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", terminal)
    async with staged(tmp_path, REPLIES, ascii=stated) as stage:
        assert (await stage.screen()).isascii() == is_ascii
