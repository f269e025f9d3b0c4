from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from textual.geometry import Offset, Region
from textual.selection import Selection

from tests.support.linked import until
from tests.widgets import hosting
from tests.widgets.hosting import Host, hosted, lay_out, press, resize, settle
from widgets.chat.entry import Entry
from widgets.chat.passage import GUTTER
from widgets.chat.passages import KEPT
from widgets.chat.transcript import Transcript
from widgets.glyphs import UNICODE

LINES = "  \n".join(f"line {n}" for n in range(40))
CODE = "See:\n\n```python\nx = 1\ny = 2\n```"


def entry(number: int, text: str, **more: object) -> Entry:
    """The user's if even, the model's if odd."""
    is_reply = number % 2 == 1
    role, author = ("assistant", "qwen") if is_reply else ("user", "you")
    return Entry(key=str(number), role=role, author=author, clock="14:02", text=text, **more)  # type: ignore[arg-type]


def rows(view: Transcript) -> list[str]:
    """The text on the screen, line by line, without the edge at which messages are marked."""
    return [row[GUTTER:] for row in hosting.rows(view)]


async def page_up(view: Transcript, app: Host) -> None:
    view.action_page_up()
    await settle(app)


async def to_end(view: Transcript, app: Host) -> None:
    view.action_scroll_end()
    await settle(app)


def marked(view: Transcript) -> list[str]:
    """The rows on the screen that are marked as those of the current message."""
    return [row[GUTTER:] for row in hosting.rows(view) if row.startswith(UNICODE.edge)]


@asynccontextmanager
async def shown(
    *entries: Entry, width: int = 40, height: int = 12
) -> AsyncIterator[tuple[Transcript, Host]]:
    transcript = Transcript()
    async with hosted(transcript, width + GUTTER, height, focus=True) as (app, _):
        transcript.show("c", entries)
        await settle(app)
        yield transcript, app


async def test_messages_stand_below_their_headers() -> None:
    async with shown(entry(0, "Hi *there*"), entry(1, "A *reply*", note="2 tok")) as (view, _):
        assert rows(view)[:6] == [
            "you  14:02",
            "  Hi *there*",
            "",
            "qwen  14:02 · 2 tok",
            "  A reply",
            "",
        ]


async def test_an_empty_conversation_greets() -> None:
    transcript = Transcript()
    async with hosted(transcript, 40, 6) as (app, _):
        transcript.show("c", (), "ready\nask")
        await settle(app)
        assert rows(transcript) == ["", "  ready", "  ask", "", "", ""]
        transcript.show("c", (entry(0, "Hi"),), "ready")
        await settle(app)
        assert "ready" not in rows(transcript)[1]


async def test_a_long_greeting_is_broken_and_a_long_header_ends_in_an_ellipsis() -> None:
    async with shown(width=30) as (view, _):
        view.show("c", (), "There is no model: the folder has no config.json")
        assert rows(view)[1:3] == ["  There is no model: the", "  folder has no config.json"]
        view.show("c", (entry(1, "Yes.", note="340 tok · 12.3 tok/s"),))
        assert rows(view)[0] == "qwen  14:02 · 340 tok · 12.3…"


async def test_a_growing_text_ends_in_a_cursor() -> None:
    async with shown(entry(1, "one two", growing=True)) as (view, app):
        assert rows(view)[1] == "  one two▍"
        view.show("c", (entry(1, "one two\n\nthree", growing=True),))
        await settle(app)
        assert rows(view)[1:4] == ["  one two", "", "  three▍"]
        view.show("c", (entry(1, "one two\n\nthree", note="3 tok"),))
        await settle(app)
        assert rows(view)[:4] == ["qwen  14:02 · 3 tok", "  one two", "", "  three"]


async def test_a_growing_reply_keeps_the_drawn_rows_near_the_view_only() -> None:
    async with shown(entry(1, "", growing=True)) as (view, app):
        text = ""
        for number in range(4 * view.size.height):
            text += f"line {number}\n\n"
            view.show("c", (entry(1, text, growing=True),))
            await settle(app)
            assert rows(view)  # drawn now, and not when a timer has come
        passage, _ = view._passages.locate(view.scroll_offset.y)
        assert passage is not None
        assert passage.height > 7 * view.size.height
        assert view.size.height <= len(passage.strips) <= 4 * view.size.height
        view.scroll_home(animate=False)
        await settle(app)
        assert rows(view)[1] == "  line 0"


async def test_a_new_row_does_not_lay_out_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    """All panels were laid out anew for each row of a reply, which took 9 ms."""
    async with shown(entry(1, "", growing=True)) as (view, app):
        refresh, laid_out = view.refresh, []

        def noted(*regions: Region, layout: bool = False, **how: bool) -> Transcript:
            laid_out.append(layout)
            return refresh(*regions, layout=layout, **how)

        monkeypatch.setattr(view, "refresh", noted)
        for end in range(1, 30):
            view.show("c", (entry(1, "line  \n" * end, growing=True),))
            await settle(app)
        assert laid_out
        assert not any(laid_out)
        assert view.scroll_offset.y == view.max_scroll_y == 31 - view.size.height
        assert view.vertical_scrollbar.window_virtual_size == 31
        assert view.vertical_scrollbar.position == view.scroll_offset.y


async def test_the_cursor_leaves_no_trace_where_a_block_begins() -> None:
    text = "one\n\n---\n\n```\nx\n"
    async with shown(entry(1, "", growing=True)) as (view, app):
        for end in range(len(text) + 1):
            view.show("c", (entry(1, text[:end], growing=True),))
            await settle(app)
            assert "\n".join(rows(view)).count("▍") == (1 if text[:end].strip() else 0)


async def test_a_failure_is_told_in_full_below_the_text() -> None:
    sentence = "the device ran out of memory while 12 sequences ran"
    async with shown(entry(1, "half a", note=sentence, failed=True), width=30) as (view, _):
        assert rows(view)[:5] == [
            "qwen  14:02 · failed",
            "  half a",
            "  the device ran out of",
            "  memory while 12 sequences",
            "  ran",
        ]


async def test_it_follows_until_scrolled_up_and_again_from_the_end() -> None:
    async with shown(entry(1, LINES, growing=True)) as (view, app):
        assert rows(view)[-2] == "  line 39▍"
        await page_up(view, app)
        assert not view.is_vertical_scroll_end
        before = rows(view)[:-1]
        view.show("c", (entry(1, LINES + "  \nline 40  \nline 41", growing=True),))
        await settle(app)
        assert rows(view)[:-1] == before
        assert rows(view)[-1].endswith("↓ 2 new lines · End to follow")
        await to_end(view, app)
        assert view.is_vertical_scroll_end
        assert rows(view)[-2] == "  line 41▍"


async def test_scrolling_down_to_the_end_follows_again() -> None:
    async with shown(entry(1, LINES)) as (view, app):
        await press(app, "shift+up")
        assert not view.is_vertical_scroll_end
        await press(app, "shift+down")
        assert view.is_vertical_scroll_end


async def test_another_conversation_is_shown_from_its_end() -> None:
    async with shown(entry(1, LINES)) as (view, app):
        await press(app, "home")
        view.show("d", (entry(1, LINES + "  \nlast"),))
        await settle(app)
        assert view.is_vertical_scroll_end
        assert rows(view)[-2] == "  last"


async def test_messages_are_replaced_from_where_they_differ() -> None:
    async with shown(entry(0, "Hi"), entry(1, "old")) as (view, app):
        view.show("c", (entry(0, "Hi"), entry(3, "new"), entry(4, "more")))
        await settle(app)
        assert "old" not in view.text
        assert [line for line in view.text.split("\n") if line.startswith("  ")] == [
            "  Hi",
            "  new",
            "  more",
        ]


async def test_only_messages_that_were_in_view_are_set() -> None:
    entries = [entry(n, f"message {n}") for n in range(10_000)]
    async with shown(*entries) as (view, app):
        assert "message 9999" in view.text
        assert view.text.count("message") <= 5
        await press(app, "home")
        assert rows(view)[1] == "  message 0"
        assert view.text.count("message") <= 10
        assert not view.is_vertical_scroll_end


async def test_nothing_jumps_where_messages_above_come_into_view() -> None:
    # A table is higher than its text lets one guess, a long line of Markdown lower.
    table = "| a | b |\n|---|---|\n" + "| 1 | 2 |\n" * 3
    kinds = (table, "[x](http://example.org/" + "y" * 200 + ")\n\n", "one\n\n\n\n\ntwo", "z")
    entries = [entry(2 * n + 1, kinds[n % 4]) for n in range(40)]
    async with shown(*entries) as (view, app):
        while view.scroll_y > 0:
            before = rows(view)
            view.scroll_to(y=view.scroll_y - 1, animate=False)
            await settle(app)
            assert rows(view)[1:-1] == before[:-2]
        assert rows(view)[0] == "qwen  14:02"
        assert view.num_new_rows == 0


async def test_rows_of_messages_far_away_are_forgotten() -> None:
    entries = [entry(n, f"message {n}") for n in range(3 * KEPT)]
    async with shown(*entries) as (view, app):
        height = view.virtual_size.height
        while view.scroll_y > 0:
            await page_up(view, app)
        assert view.text.count("message") <= KEPT + 12
        assert view.virtual_size.height == height
        await to_end(view, app)
        assert rows(view)[-2] == f"  message {3 * KEPT - 1}"


async def test_another_width_sets_the_text_anew_and_goes_on_following() -> None:
    async with shown(entry(1, "word " * 100), width=40) as (view, app):
        narrow = view.virtual_size.height
        await resize(app, view, 80, 12)
        assert view.virtual_size.height < narrow
        assert view.is_vertical_scroll_end


async def test_selected_text_is_copied_as_it_was_written() -> None:
    text = "one two three four five six\n\n" + CODE
    async with shown(entry(1, text), width=20, height=20) as (view, _):
        everything = view.get_selection(Selection(Offset(0, 1), None))
        assert everything is not None
        copied = everything[0]
        assert copied.startswith("one two three four five six\n\nSee:\n")
        assert "\nx = 1\ny = 2\n" in copied
        assert "│" not in copied
        part = view.get_selection(Selection(Offset(7, 1), Offset(10, 1)))
        assert part is not None
        assert part[0] == "two"


async def test_a_click_on_copy_copies_that_block() -> None:
    transcript = Transcript()
    async with hosted(transcript, 40, 16) as (app, pilot):
        transcript.show("c", (entry(1, CODE + "\n\n```\nz\n```"),))
        await settle(app)
        y = next(y for y, row in enumerate(rows(transcript)) if "python" in row)
        x = rows(transcript)[y].index("copy") + GUTTER
        await pilot.click(transcript, offset=(x, y))
        assert [m.text for m in app.sent(Transcript.CopyWanted)] == ["x = 1\ny = 2"]


async def test_text_steers_neither_the_terminal_nor_the_direction_of_writing() -> None:
    # ZWNJ and ZWJ are of the text: Persian, and an emoji of several.
    joined = "\u0645\u06cc\u200c\u062e \U0001f469\u200d\U0001f52c"
    hostile = f"a\x1b[2Jb\x07\x9b1mc\r\u202ed\u2066e\u200ff\ud800 {joined}"
    clean = f"a[2Jb1mcdef {joined}"
    for number in (0, 1):
        said = replace(entry(number, f"{hostile}\n\n`{hostile}`"), author="al\x1bice")
        async with shown(said, width=60) as (view, _):
            lines = rows(view)
            assert lines[0].startswith("al ice  14:02")
            assert lines[1].strip() == clean
            assert lines[3].strip(" `") == clean


CHAT = (entry(0, "Hi"), entry(1, "Hello"), entry(2, "more"), entry(3, LINES))


async def test_the_current_message_is_marked_and_moves_by_keys() -> None:
    async with shown(*CHAT) as (view, app):
        assert view.current == ""
        await press(app, "up")
        assert (view.current, view.is_vertical_scroll_end) == ("3", True)
        assert marked(view)[-1] == "  line 39"
        await press(app, "up")
        assert view.current == "2"
        assert marked(view) == ["you  14:02", "  more"]
        await press(app, "k", "k", "k")
        assert view.current == "0"
        assert marked(view) == rows(view)[:2] == ["you  14:02", "  Hi"]
        await press(app, "j", "down")
        assert view.current == "2"
        await press(app, "down")
        assert rows(view)[0] == "qwen  14:02"  # it is higher than the view: one reads from its top
        assert not view.is_vertical_scroll_end
        await press(app, "down")
        assert (view.current, view.is_vertical_scroll_end) == ("3", True)
        view.rest()
        await settle(app)
        assert (view.current, marked(view)) == ("", [])


async def test_moving_goes_on_from_what_one_sees() -> None:
    async with shown(*(entry(n, f"message {n}") for n in range(100))) as (view, app):
        await press(app, "up")
        await page_up(view, app)
        await page_up(view, app)
        await press(app, "down")
        assert view.current in {
            key for key in map(str, range(100)) if f"  message {key}" in rows(view)
        }
        await press(app, "home")
        assert view.current == "0"
        await to_end(view, app)
        assert view.current == "99"


async def test_the_focus_and_a_click_make_a_message_the_current_one() -> None:
    transcript = Transcript()
    async with hosted(transcript, 40, 20) as (app, pilot):
        transcript.show("c", CHAT[:3])
        await settle(app)
        await pilot.click(transcript, offset=(5, 4))
        assert transcript.current == "1"
        app.set_focus(None)
        await settle(app)
        assert transcript.current == "1"
        transcript.rest()
        transcript.focus()
        await settle(app)
        assert transcript.current == "2"


async def test_another_chat_and_a_message_that_is_gone_leave_none_the_current_one() -> None:
    async with shown(*CHAT) as (view, app):
        await press(app, "up")
        view.show("c", CHAT[:3])
        assert view.current == ""
        await press(app, "up")
        view.show("d", CHAT)
        assert view.current == ""


async def test_a_message_is_gone_to_and_words_are_marked_in_it() -> None:
    entries = [
        *(entry(n, f"message {n}") for n in range(500)),
        entry(501, "Étude ate 77\n\n" + LINES),
    ]
    async with shown(*entries) as (view, app):
        assert not view.go_to("nobody")
        assert view.go_to("100", ["MESSAGE"])
        await settle(app)
        assert view.current == "100"
        assert marked(view) == ["you  14:02", "  message 100"]
        assert view.num_new_rows == 0
        y = rows(view).index("  message 100")
        (hit,) = (s.text for s in view.render_line(y) if s.style and s.style.underline)
        assert hit == "message"
        view.rest()
        await settle(app)
        assert not any(s.style and s.style.underline for s in view.render_line(y))
        view.go_to("501", ["39"])
        await settle(app)
        assert any(row.strip() == "line 39" for row in rows(view))
        view.go_to("501", ["etude", "te"])
        await settle(app)
        y = next(y for y, row in enumerate(rows(view)) if "Étude" in row)
        hits = [s.text for s in view.render_line(y) if s.style and s.style.underline]
        assert hits == ["Étude"]  # and not the end of "ate": words are found by their beginnings


async def test_a_message_can_be_gone_to_before_there_is_room_for_it() -> None:
    transcript = Transcript()
    async with hosted(transcript, 2, 12) as (app, _):
        transcript.show("c", CHAT)
        assert transcript.go_to("1")
        await resize(app, transcript, 40, 4)
        assert rows(transcript)[:2] == ["qwen  14:02", "  Hello"]


async def test_what_is_typed_is_meant_for_the_prompt() -> None:
    async with shown(*CHAT) as (_, app):
        await press(app, "h", "slash")
        await hosting.paste(app, "pasted")
        assert [m.text for m in app.sent(Transcript.Typed)] == ["h", "/", "pasted"]


async def test_the_place_among_branches_stands_in_the_header() -> None:
    async with shown(entry(0, "Hi", branch=(2, 3)), entry(1, "a", note="2 tok", branch=(1, 2))) as (
        view,
        _,
    ):
        assert (rows(view)[0], rows(view)[3]) == ("you  14:02  2/3", "qwen  14:02  1/2 · 2 tok")


async def test_what_comes_while_it_is_hidden_is_set_when_it_is_shown() -> None:
    async with shown(entry(1, "one", growing=True)) as (view, app):
        view.display = False
        await lay_out(app)
        view.show("c", (entry(1, "one two", growing=True),))
        await settle(app)
        assert "two" not in view.text
        view.display = True
        await until(lambda: rows(view)[1:2] == ["  one two▍"])
