"""The keys that the panels' own texts name."""

from __future__ import annotations

from pathlib import Path

from tests.app.screens.stage import staged


async def test_panels_name_the_keys_that_the_user_has_bound(tmp_path: Path) -> None:
    keys = {"knobs.undo": "f20", "knobs.edit": "e", "log.level": "f18", "table.filter": "f19"}
    async with staged(tmp_path, size=(160, 48), keys=keys) as stage:
        screen = await stage.screen()
        for said in ("h history · f20 undo", "→ turn · e edits", "f18 level:", "· f19 filter"):
            assert said in screen
        stage.app.set_keymap({"table.sort": "f17"})
        stage.deck.update_key_hints()
        screen = await stage.screen()
        for said in ("· u undo", "enter edits", "· l level:", "/ filter · f17 sort: state"):
            assert said in screen
