"""The settings screen: what it changes counts at once, and at the next start."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from textual.widgets import Input, Label

from app.screens.settings.change_settings import ChangeSettings, PressKey
from app.settings.layers import load_interface
from app.settings.settings import Settings
from tests.app.screens.stage import REPLIES, Stage, staged


async def find(stage: Stage, words: str) -> ChangeSettings:
    """Open the settings at what is found by `words`."""
    await stage.press("f9", *words)
    await stage.screen()
    assert isinstance(stage.app.screen, ChangeSettings)
    return stage.app.screen


def next_start(folder: Path) -> Settings:
    return load_interface({}, None, {"TUI_DATA_DIR": str(folder)})[0]


async def test_a_theme_is_chosen_and_remembered(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await find(stage, "theme")
        await stage.press("right")
        assert stage.app.theme == "textual-light"
        await stage.press("right", "enter", "left")
        assert stage.app.theme == "contrast"
    assert next_start(tmp_path).theme == "contrast"
    async with staged(tmp_path, theme=next_start(tmp_path).theme) as stage:
        assert stage.app.theme == "contrast"
        await find(stage, "theme")
        await stage.press("ctrl+r")
        assert next_start(tmp_path).theme is None


async def test_what_a_setting_means_is_told_whole_at_80_columns(tmp_path: Path) -> None:
    async with staged(tmp_path, size=(80, 24)) as stage:
        dialog = await find(stage, "")
        meaning = dialog.query_one("#meaning", Label)
        for row in dialog._shown.values():
            dialog.options.highlighted = dialog.options.get_option_index(row.id)
            await stage.settle()
            said = [strip.text.strip() for strip in meaning.render_lines(meaning.size.region)]
            assert " ".join(said).split() == row.description.split()


async def test_a_setting_has_a_name_in_words_and_a_figure_with_its_unit(tmp_path: Path) -> None:
    alerts = {"kv": 95, "ttft": 150, "preemptions": 3, "broker": 5}
    async with staged(tmp_path, size=(80, 24), alerts=alerts) as stage:
        await find(stage, "")
        rows = [" ".join(row.split()[1:-1]) for row in (await stage.screen()).splitlines()]
        assert "Time to first token 1.00s" in rows
        assert "Time per output token 100ms" in rows
        assert "Time to first token, p99 150% of the target" in rows
        assert "KV cache in use 95%" in rows
        assert "Preemptions 3 a minute" in rows
        assert "Longest wait off" in rows


async def test_a_key_is_called_by_what_it_does_and_shown_as_everywhere(tmp_path: Path) -> None:
    async with staged(tmp_path, size=(80, 24)) as stage:
        await find(stage, "chat.branch_next")
        shown = await stage.screen()
        (row,) = (row for row in shown.splitlines() if "alt+→" in row)
        assert "Show the next branch (n/m)" in row
        assert "alt+→, ]" in row
        assert "chat.branch_next" not in row
        assert "Show the next branch (n/m) · keys.chat.branch_next" in shown


async def test_its_list_is_paged_and_gone_through_to_both_ends(tmp_path: Path) -> None:
    async with staged(tmp_path, size=(80, 24)) as stage:
        dialog = await find(stage, "")
        ids = list(dialog._shown)
        first, last = ids[0], ids[-1]
        await stage.press("pagedown")
        assert ids.index(dialog.marked) > 5
        await stage.press("pagedown", "pageup", "pageup")
        assert dialog.marked == first
        await stage.press("end")
        assert dialog.marked == last
        await stage.press("home")
        assert dialog.marked == first


async def test_home_and_end_are_first_those_of_what_is_typed(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        dialog = await find(stage, "keys")
        first = dialog.marked
        line = dialog.query_one(Input)
        await stage.press("end")
        assert dialog.marked == list(dialog._shown)[-1]
        await stage.press("home")
        assert line.cursor_position == 0
        assert dialog.marked == list(dialog._shown)[-1]
        await stage.press("home")
        assert dialog.marked == first


async def test_the_palette_opens_the_settings_at_the_theme(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        (theme,) = (c for c in stage.app.get_system_commands(stage.deck) if c.title == "Theme…")
        theme.callback()
        await stage.screen()
        await stage.press("right")
        assert stage.app.theme == "textual-light"


async def test_cadence_is_made_frugal(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        usual = stage.deck.pump.cadence.engine
        await find(stage, "cadence")
        await stage.press("enter")
        assert stage.deck.pump.cadence.engine == 2 * usual
    assert next_start(tmp_path).cadence == "frugal"


async def test_a_target_is_set_and_remembered(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await find(stage, "ttft_target")
        await stage.press("enter")
        await stage.press(*"250", "enter")
        knob = {k.name: k.requested for k in stage.engine.snapshot().knobs}  # type: ignore[union-attr]
        assert knob["ttft_target_ms"] == 250.0
    assert next_start(tmp_path).knobs == {"ttft_target_ms": 250.0}


REFUSED = [
    ("ttft_target", "soon", "Time to first token is 'soon'; it must be a number"),
    ("alerts.kv", "-1", "alerts.kv is -1.0; it should be greater than or equal to 0"),
    ("alerts.kv", "much", "alerts.kv is 'much'; it must be a number, on or off"),
]


async def test_what_cannot_be_is_refused_and_not_kept(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        for words, typed, outcome in REFUSED:
            dialog = await find(stage, words)
            await stage.press("enter")
            await stage.press(*(k if k != "-" else "minus" for k in typed), "enter")
            await stage.screen()
            assert dialog.outcome == outcome
            await stage.press(*("escape",) * 3)
            assert stage.app.screen is stage.deck
    assert not (tmp_path / "interface.toml").exists()


async def test_an_alert_is_turned_on_and_tells(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await find(stage, "alerts.kv")
        await stage.press("enter")
        asked = " ".join((await stage.screen()).replace("│", " ").split())
        assert "more than this share of it is used; usual is 95%; a number (%), on or off" in asked
        await stage.press(*"0", "enter", "escape")
        await stage.send("one")
        await stage.turn(1)
        await stage.turn()
        assert [t for t in stage.toasts if t.startswith("KV cache in use")]
        assert "alert: KV cache in use" in " ".join(
            line.text for _, line in stage.deck.panels.log._events
        )
    assert next_start(tmp_path).alerts.kv == 0.0


async def test_a_key_is_changed_by_pressing_it_and_reset(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, keys={"dialog.cancel": "f19"}) as stage:
        await stage.send("one")
        await find(stage, "chat.new")
        await stage.press("enter")
        assert isinstance(stage.app.screen, PressKey)
        assert "f19 leaves it as it is." in await stage.screen()
        await stage.press("f20")
        assert stage.deck.chat.composer.new_key == "f20"
        await stage.press("f19", "f20")
        assert len(stage.sessions.sessions) == 2
        assert next_start(tmp_path).keys == {"chat.new": "f20"}
        await stage.send("two")
        await find(stage, "chat.new")
        await stage.press("ctrl+r", "f19", "ctrl+n")
        assert len(stage.sessions.sessions) == 3
        assert next_start(tmp_path).keys == {}


async def test_each_key_is_told_by_what_it_alone_does_in_its_place(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        dialog = await find(stage, "")
        rows = [row for row in dialog._shown.values() if row.table == "keys"]
        told = Counter((row.section, row.label) for row in rows)
        assert [what for what, times in told.items() if times > 1] == []
        labels = {row.name: row.label for row in rows}
        assert labels["kv.down"] == "Block below"
        assert labels["view.mode"] == "Switch between chat and engine"
        assert labels["transcript.copy_code"].startswith("Copy a block of code")


async def test_its_own_keys_are_told_as_they_are_bound(tmp_path: Path) -> None:
    async with staged(tmp_path, keys={"settings.reset": "f20"}) as stage:
        await find(stage, "settings.next")
        assert "Enter changes, ← → chooses, f20 resets, esc closes" in await stage.screen()
        await stage.press("enter", "f19")
        assert "Enter changes, ← f19 chooses, f20 resets, esc closes" in await stage.screen()


TAKEN = [
    (
        "chat.new",
        "ctrl+w",
        "chat.new: ctrl+w is that of chat.close (close the chat; it is kept)",
    ),
    (
        "chat.new",
        "f1",
        "chat.new: f1 is that of app.help (all keys, those of the present place first)",
    ),
    ("app.quit", "q", "app.quit: q could not be typed any more"),
    ("app.quit", "full_stop", "app.quit: full_stop could not be typed any more"),
    ("app.quit", "slash", "app.quit: slash could not be typed any more"),
]


async def test_a_key_that_has_a_meaning_is_refused(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        for name, key, outcome in TAKEN:
            dialog = await find(stage, name)
            await stage.press("enter", key)
            await stage.screen()
            assert dialog.outcome == outcome
            await stage.press("escape")
            assert stage.app.screen is stage.deck
    assert not (tmp_path / "interface.toml").exists()
