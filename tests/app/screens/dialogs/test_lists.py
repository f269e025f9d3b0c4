"""The lists of dialogs: what is in them can be seen."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.containers import Vertical
from textual.widgets import OptionList

from tests.app.screens.stage import staged


@pytest.mark.parametrize("size", [(80, 24), (60, 16)])
@pytest.mark.parametrize("keys", [("f9",), ("f2", "p")], ids=["settings", "policy"])
async def test_a_list_ends_within_its_dialog(
    keys: tuple[str, ...], size: tuple[int, int], tmp_path: Path
) -> None:
    async with staged(tmp_path, size=size) as stage:
        await stage.press(*keys)
        await stage.screen()
        frame, rows = (stage.app.screen.query_one(kind) for kind in (Vertical, OptionList))
        assert rows.region.bottom <= frame.content_region.bottom
