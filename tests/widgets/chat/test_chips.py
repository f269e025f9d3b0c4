from __future__ import annotations

from tests.widgets.hosting import hosted, rows
from widgets.chat.chips import Chips
from widgets.chat.completions import Completion, Completions


async def test_a_long_name_gives_way_to_what_is_told_of_it() -> None:
    """Size, tokens and the cross were cut off."""
    chips = Chips()
    async with hosted(chips, 43) as (_, pilot):
        chips.show(["notes · of a meeting in May.txt · 120 B · 43 tokens", "a · 1 B · 9 tokens"])
        await pilot.pause()
        assert rows(chips) == ["notes · of a meet… · 120 B · 43 tokens ✕", "a · 1 B · 9 tokens ✕"]


async def test_what_a_command_does_ends_in_an_ellipsis_where_it_is_cut() -> None:
    offered = Completions()
    async with hosted(offered, 31) as (_, pilot):
        does = "Take in the chats of a file"
        offered.show([Completion("/import PATH", does, "/import ", False)])
        await pilot.pause()
        assert rows(offered) == ["▸ /import PATH  Take in the c…"]
