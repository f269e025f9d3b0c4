"""Parts of a message are folded to one line until they are opened."""

from __future__ import annotations

import json

import pytest

from tests.widgets.chat.test_transcript import entry, rows, shown
from tests.widgets.hosting import Host, hosted, press, settle
from widgets.chat.entry import Entry
from widgets.chat.folds import Folds
from widgets.chat.passage import Passage
from widgets.chat.transcript import Transcript
from widgets.chat.typeset import Typesetter
from widgets.glyphs import UNICODE

THOUGHT = entry(
    1, "It is *4*.", thinking="Two and\n\n- two", thought_tokens=412, thought_seconds=8.2
)


async def folded(view: Transcript, app: Host, *keys: str) -> list[str]:
    await press(app, *keys)
    return [row for row in rows(view) if row.strip()]


async def test_thinking_is_one_line_until_it_is_asked_for() -> None:
    async with shown(entry(0, "2+2?"), THOUGHT, width=50) as (view, app):
        line = "thought · 412 tokens · 8.20s"
        assert rows(view)[3:7] == ["qwen  14:02", f"  ▸ {line}", "", "  It is 4."]
        assert (await folded(view, app, "up", "enter"))[2:] == [
            *("qwen  14:02", f"  ▾ {line}", "  Two and", "  • two", "  It is 4."),
        ]
        thought, said = (
            {s.style.color for s in view.render_line(y) if s.text.strip(" ▌") and s.style}
            for y in (5, 9)
        )
        assert not thought & said
        assert "  Two and" not in await folded(view, app, "space")


async def test_all_thinking_is_shown_and_folded_at_once() -> None:
    old = entry(3, "Yes.", thinking="So it is.")  # kept before tokens and times were
    async with shown(THOUGHT, entry(2, "Sure?"), old, height=20) as (view, app):
        assert "  ▸ thought" in rows(view)
        shown_all = await folded(view, app, "t")
        assert {"  Two and", "  So it is."} <= set(shown_all)
        assert "  So it is." not in await folded(view, app, "up", "enter")
        assert "  Two and" in rows(view)
        assert "  Two and" not in await folded(view, app, "t")


async def test_a_time_that_is_not_known_is_left_out() -> None:
    thought = entry(1, "Yes.", thinking="So", thought_tokens=9)
    async with shown(thought) as (view, _):
        assert rows(view)[1] == "  ▸ thought · 9 tokens"


async def test_a_reply_that_only_thought_says_so_once_it_has_ended() -> None:
    silent = "  The reply is thinking only, without text."
    async with shown(entry(0, "2+2?"), width=50) as (view, app):
        for growing, calls, tells in ((True, (), False), (False, (("add", "{}"),), False)):
            thought = entry(1, "", thinking="Two", growing=growing, calls=calls)
            view.show("c", (entry(0, "2+2?"), thought))
            await settle(app)
            assert (silent in rows(view)) == tells
        view.show("c", (entry(0, "2+2?"), entry(1, "", thinking="Two", note="context full")))
        await settle(app)
        assert rows(view)[3:7] == ["qwen  14:02 · context full", "  ▸ thought", "", silent]


async def test_folded_thinking_shows_that_it_goes_on() -> None:
    async with shown(entry(0, "2+2?"), width=50) as (view, app):
        for tokens, line in ((1, "1 token · 0.0ms"), (212, "212 tokens · 4.10s")):
            seconds = 0.0 if tokens == 1 else 4.1
            thinks = entry(
                *(1, ""),
                thinking="Two " * tokens,
                thought_tokens=tokens,
                thought_seconds=seconds,
                growing=True,
            )
            view.show("c", (entry(0, "2+2?"), thinks))
            await settle(app)
            assert rows(view)[4] == f"  ▸ thinking… {line}▍"
        assert "Two" not in view.text
        assert "Two Two" in " ".join(await folded(view, app, "up", "enter"))


async def test_a_click_on_the_line_unfolds() -> None:
    transcript = Transcript()
    async with hosted(transcript, 50, 12) as (app, pilot):
        transcript.show("c", (THOUGHT,))
        await settle(app)
        await pilot.click(transcript, offset=(8, 1))
        assert "  Two and" in rows(transcript)
        await pilot.click(transcript, offset=(8, 2))  # elsewhere in it
        assert "  Two and" in rows(transcript)


async def test_what_is_above_stays_where_it_is_when_a_message_is_unfolded() -> None:
    entries = [entry(2 * n, f"message {n}") for n in range(30)]
    long = entry(99, "4", thinking="so\n\n" * 60)
    async with shown(*entries, long) as (view, app):
        before = rows(view)
        await press(app, "up", "enter")
        assert rows(view)[:8] == [row.replace("▸", "▾") for row in before][:8]


def of_tools(entry: Entry, *, is_open: bool = False, width: int = 40) -> list[str]:
    typesetter = Typesetter(UNICODE)
    folds = Folds(typesetter, width, is_open=is_open, shows_thinking=False)
    return [line.rstrip() for line in Passage(entry, typesetter, width, folds).lines[1:-1]]


def test_a_call_stands_in_a_line_with_its_arguments() -> None:
    calls = (("get_weather", '{"city": "Zürich", "days": 3}'), ("stop", ""), ("odd", "not {json"))
    called = entry(1, "Let me see.", calls=calls)
    assert of_tools(called, width=60) == [
        "  Let me see.",
        "",
        '  ⚙ get_weather(city="Zürich", days=3)',
        "  ⚙ stop()",
        "  ⚙ odd(not {json)",
    ]


def test_long_arguments_are_folded_and_set_as_json_on_demand() -> None:
    called = entry(1, "", calls=(("find", json.dumps({"text": "word " * 20, "at": [1, 2]})),))
    (line,) = of_tools(called)
    assert line.startswith('  ▸ ⚙ find(text="word word')
    assert line.endswith("…")
    unfolded = of_tools(called, is_open=True)
    assert unfolded[0] == "  ▾ ⚙ find"
    assert unfolded[1].startswith("  ╭ json ")
    assert any('"at": [' in row for row in unfolded)


def test_what_a_tool_gave_is_folded_when_it_is_long() -> None:
    short = Entry(key="1", role="tool", author="tool", clock="", text="21 °C", tool="get_weather")
    assert of_tools(short) == ["  ↳ get_weather: 21 °C"]
    long = Entry(
        key="1", role="tool", author="tool", clock="", text='["a", "b"' + ', "c"' * 40 + "]"
    )
    (line,) = of_tools(long)
    assert line.startswith('  ▸ ↳ 6 lines · 210 B · ["a", "b"')
    unfolded = of_tools(long, is_open=True)
    assert unfolded[:3] == ["  ▾ ↳ 6 lines · 210 B", "    [", '      "a",']


def test_an_attachment_is_its_name_and_size_until_it_is_asked_for() -> None:
    files = entry(0, "Compare.", attachments=(("a.txt", "one\ntwo\n"), ("b.md", "é" * 2048)))
    assert of_tools(files) == ["  ▸ ▤ a.txt · 8 B", "  ▸ ▤ b.md · 4 KiB", "", "  Compare."]
    assert of_tools(files, is_open=True)[:3] == ["  ▾ ▤ a.txt · 8 B", "    one", "    two"]


@pytest.mark.parametrize("shows_thinking", [False, True])
def test_thinking_and_then_text_grow_as_if_they_were_set_at_once(shows_thinking: bool) -> None:
    thinking, text = "Two and two\n\nis four, as all know.\n\nSo", "It is **4**.\n\nReally, `4`."
    stages = [entry(1, "", thinking=thinking[:n], growing=True) for n in range(len(thinking))]
    stages += [entry(1, text[:n], thinking=thinking, growing=True) for n in range(len(text))]
    stages.append(entry(1, text, thinking=thinking))
    typesetter = Typesetter(UNICODE)
    folds = Folds(typesetter, 12, is_open=False, shows_thinking=shows_thinking)
    passage = Passage(stages[0], typesetter, 12, folds)
    num_stayed = 0
    for stage in stages:
        before = [passage.line(i, "_") for i in range(passage.height)]
        stayed = passage.update(stage)
        now = [passage.line(i, "_") for i in range(passage.height)]
        fresh = Passage(stage, typesetter, 12, folds)
        assert now == [fresh.line(i, "_") for i in range(fresh.height)]
        assert now[2 : 1 + stayed] == before[2 : 1 + stayed]
        num_stayed += stayed
    assert num_stayed > len(text)  # else everything was set anew each time
