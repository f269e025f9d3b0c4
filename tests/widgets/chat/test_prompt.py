from __future__ import annotations

from textual import events

from tests.widgets.hosting import hosted, paste, press, rows, screen, settle
from widgets.chat.prompt import (
    MAX_HEIGHT,
    PASTED_CHARACTERS,
    PASTED_LINES,
    Prompt,
    PromptArea,
    printable,
)
from widgets.glyphs import ASCII


async def test_enter_that_nobody_binds_is_a_newline_and_others_stay_in_order() -> None:
    prompt = Prompt()
    async with hosted(prompt) as (app, _):
        prompt.area.focus()
        await settle(app)
        for key in (*"ac", "left", "b", "right", "alt+enter", *"de", "shift+enter", "f"):
            app.post_message(events.Key(key, key if len(key) == 1 else None))
        await settle(app)
        assert prompt.text == "abc\nde\nf"


async def test_up_at_the_top_goes_back_and_down_comes_forth() -> None:
    prompt = Prompt()
    async with hosted(prompt) as (app, _):
        prompt.load("", ("first", "second\nline"))
        prompt.area.focus()
        await press(app, *"draft", "up")
        assert prompt.text == "second\nline"
        await press(app, "up")
        assert prompt.text == "second\nline"  # from its last line to its first
        await press(app, "up")
        assert prompt.text == "first"
        await press(app, "up")
        assert prompt.text == "first"
        await press(app, "down")
        assert prompt.text == "second\nline"
        await press(app, "down")
        assert prompt.text == "draft"
        await press(app, "down")
        assert prompt.text == "draft"


async def test_a_draft_of_several_lines_is_walked_before_the_history() -> None:
    prompt = Prompt()
    async with hosted(prompt) as (app, _):
        prompt.load("one\ntwo", ("old",))
        prompt.area.focus()
        await press(app, "up")
        assert prompt.text == "one\ntwo"
        await press(app, "up")
        assert prompt.text == "old"


async def test_a_paste_of_lines_is_text_and_sends_nothing() -> None:
    prompt = Prompt()
    async with hosted(prompt) as (app, _):
        prompt.area.focus()
        await press(app, *"ab", "left")
        app.screen.post_message(events.Paste("1\r\n2\r3\x1b[31m\x00\t4"))
        await settle(app)
        assert prompt.text == "a1\n2\n3[31m\t4b"
        await press(app, "!")
        assert prompt.text == "a1\n2\n3[31m\t4!b"


def test_printable_keeps_what_people_write() -> None:
    for text in ("naïve 字 🙂\n\tx\u3000y", "می\u200cخواهم", "👩\u200d🔬"):
        assert printable(text) == text


def test_printable_drops_what_moves_the_cursor_or_is_half_a_character() -> None:
    assert printable("a\x0b\x0cb\x1c\x85c\x9b\ud83d") == "abc"


async def test_it_grows_with_its_text_up_to_a_limit() -> None:
    prompt = Prompt()
    prompt.styles.height = "auto"
    async with hosted(prompt, 40, 20) as (_app, pilot):
        await pilot.pause()
        assert prompt.area.size.height == 1
        prompt.load("\n".join("abc"), ())
        await pilot.pause()
        assert prompt.area.size.height == 3
        prompt.load("\n" * 50, ())
        await pilot.pause()
        assert prompt.area.size.height == MAX_HEIGHT


async def test_ctrl_w_deletes_words_and_passes_by_an_empty_prompt() -> None:
    prompt = Prompt()
    async with hosted(prompt) as (app, _):
        prompt.area.focus()
        await press(app, *"ab", "space", *"cd", "ctrl+w")
        assert prompt.text == "ab "
        assert prompt.area.check_action("delete_word_left", ()) is True
        await press(app, "ctrl+w")
        assert prompt.text == ""
        assert prompt.area.check_action("delete_word_left", ()) is False


async def test_the_context_is_told_above_the_text() -> None:
    prompt = Prompt()
    async with hosted(prompt) as (app, pilot):
        prompt.show_context(812, 4096)
        await pilot.pause()
        assert "ctx 812/4,096" in screen(app)[0]
        prompt.hint("enter", "^j", "^n")
        for used, more in ((4095, ""), (4096, " · full")):
            prompt.show_context(used, 4096)
            await pilot.pause()
            row = screen(app)[0]
            assert row.rstrip(" ─").endswith(f"ctx {used:,}/4,096{more}")
        prompt.show_context(0, None)
        await pilot.pause()
        assert "ctx" not in screen(app)[0]


async def test_what_is_written_counts_in_the_context_and_too_much_of_it_is_told() -> None:
    prompt = Prompt()
    async with hosted(prompt) as (app, pilot):
        for needed, more in ((1012, ""), (54_000, " · too long")):
            prompt.show_context(812, 4096, "~53,000", needed)
            await pilot.pause()
            assert screen(app)[0].rstrip(" ─").endswith(f"ctx 812 + ~53,000 of 4,096{more}")
        prompt.show_context(0, None, "~53,000", 53_000)
        await pilot.pause()
        assert screen(app)[0].rstrip(" ─").endswith(" ~53,000 tokens")


async def test_what_the_rule_has_no_room_for_ends_in_an_ellipsis() -> None:
    prompt = Prompt()
    async with hosted(prompt, 40) as (app, pilot):
        prompt.show_settings("tiny · temp 0.7 · system: You are Socrates.")
        prompt.show_context(812, 4096)
        await pilot.pause()
        assert screen(app)[0] == "─ tiny · temp 0.7 · s… ─ ctx 812/4,096 ─"


async def test_a_full_context_says_what_helps_and_the_settings_stay() -> None:
    prompt = Prompt()
    async with hosted(prompt, 60) as (app, pilot):
        prompt.show_settings("tiny · temp 0.7")
        prompt.hint("enter", "^j", "^n")
        prompt.show_context(4096, 4096)
        await pilot.pause()
        head, area, *_ = screen(app)
        assert head == f"─ tiny · temp 0.7 {'─' * 17} ctx 4,096/4,096 · full ─"
        assert area.rstrip() == " ❯ The context is full: a new chat (^n) begins afresh."
        prompt.refuse("Somebody else holds this chat.")
        prompt.show_context(4096, 4096)
        assert str(prompt.area.placeholder) == "Somebody else holds this chat."
        prompt.refuse("")
        prompt.show_context(12, 4096)
        assert str(prompt.area.placeholder).startswith("Ask…")


async def test_a_long_paste_is_no_text_of_the_prompt() -> None:
    for text in ("x" * (PASTED_CHARACTERS + 1), "x\n" * (PASTED_LINES + 1)):
        prompt = Prompt()
        async with hosted(prompt) as (app, _):
            prompt.area.focus()
            await paste(app, text)
            assert prompt.text == ""
            (message,) = app.sent(PromptArea.LargePaste)
            assert message.text == text


async def test_ascii_hint() -> None:
    prompt = Prompt(ASCII)
    async with hosted(prompt):
        prompt.hint("enter", "ctrl+j", "ctrl+n")
        assert str(prompt.area.placeholder) == "Ask~  (enter send - ctrl+j newline - up history)"
        assert all(row.isascii() for row in rows(prompt))
