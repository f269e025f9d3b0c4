from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import InvalidConfigError
from engine.knobs import (
    KNOB_SPECS,
    KnobLedger,
    KnobRange,
    Knobs,
    KnobSpec,
    KnobState,
    KnobValue,
    change_knobs,
)
from tests.widgets.hosting import Host, hosted, press, rows
from tests.widgets.samples import CONFIG, POLICIES, knobs
from widgets.knob_panel import KnobPanel, parsed, turned

PLACES = {spec.name: place for place, spec in enumerate(KNOB_SPECS)}


def posted(app: Host) -> list[tuple[str, KnobValue]]:
    return [(message.name, message.value) for message in app.sent(KnobPanel.Turned)]


def asked(panel: KnobPanel, name: str) -> str:
    """The value on the screen, between its arrows."""
    panel.cursor = PLACES[name]
    panel.redraw()
    row = next(row for row in rows(panel) if f" {name} " in row)
    return row[row.index(name) + len(name) :].strip("┃│█ ◂▸").split("  ")[0].strip(" ▸")


async def test_asked_for_beside_in_force() -> None:
    panel = KnobPanel()
    async with hosted(panel, 76, 14):
        panel.show(knobs())
        assert rows(panel) == [
            "╭─ Scheduler · live · u undo ──────────────────────────────────────────────╮",
            "│ ▸ policy                 stall_free ▾                                    │",
            "│   max_num_seqs           ◂        8 ▸  now 12  4 more than asked for st… │",
            "│   max_num_batched_tokens ◂      512 ▸                                    │",
            "│   prefill_chunk          ◂        0 ▸  the decode_first policy ignores…  │",
            "│   watermark              ◂     0.01 ▸                                    │",
            "│   prefix_caching         [x]                                             │",
            "│   queue_limit            ◂     1000 ▸                                    │",
            "│   draining               [ ]                                             │",
            "│   paused                 [ ]                                             │",
            "│                                                                          │",
            "│ which batching policy composes each step: one of 'stall_free',           │",
            "│ 'decode_first'.                                                          │",
            "╰──────────────────────────────────────────────────────────────────────────╯",
        ]


async def test_the_knob_under_the_cursor_is_explained_in_full() -> None:
    panel = KnobPanel()
    async with hosted(panel, 76, 14, focus=True) as (app, _):
        panel.show(knobs())
        await press(app, "down")
        assert " ".join(row[2:-2].strip() for row in rows(panel)[-3:-1]) == (
            "most sequences running at once: from 1 to 32 sequences. "
            "Now 12: 4 more than asked for still run."
        )


async def test_turning_doubles_and_halves_within_the_range() -> None:
    panel = KnobPanel()
    async with hosted(panel, 76, 14, focus=True) as (app, _):
        panel.show(knobs())
        await press(app, "down", "right", "right", "right", "left")
        # Each turn starts from the last, though the engine has not answered yet; 32 is the most.
        turns = [("max_num_seqs", value) for value in (16, 32, 16)]
        assert posted(app) == turns
        assert asked(panel, "max_num_seqs") == "16"


async def test_the_engine_catching_up_does_not_turn_the_knob_back() -> None:
    panel = KnobPanel()
    async with hosted(panel, 76, 14, focus=True) as (app, _):
        panel.show(knobs())
        await press(app, "down", "right", "right")
        for seen, shown in ((8, "32"), (16, "32"), (32, "32"), (5, "5")):
            state = knobs()[1]
            panel.show([knobs()[0], replace(state, requested=seen), *knobs()[2:]])
            assert asked(panel, "max_num_seqs") == shown


async def test_somebody_elses_change_counts() -> None:
    panel = KnobPanel()
    async with hosted(panel, 76, 14, focus=True) as (app, _):
        panel.show(knobs())
        await press(app, "down", "right")
        panel.show([knobs()[0], replace(knobs()[1], requested=3), *knobs()[2:]])
        assert asked(panel, "max_num_seqs") == "3"


@pytest.mark.parametrize(
    ("name", "keys", "value"),
    [
        ("policy", ("right",), "decode_first"),
        ("policy", ("left",), "decode_first"),
        ("policy", ("enter",), "decode_first"),
        ("policy", ("space",), "decode_first"),
        ("max_num_seqs", ("left",), 4),
        ("max_num_batched_tokens", ("left",), 256),
        ("prefill_chunk", ("right",), 16),
        ("watermark", ("right",), 0.02),
        ("watermark", ("left",), 0.0),
        ("prefix_caching", ("space",), False),
        ("paused", ("enter",), True),
        ("draining", ("right",), True),
        ("max_num_seqs", ("6", "enter"), 6),
        ("max_num_seqs", ("1", "2", "backspace", "4", "enter"), 14),
        ("max_num_seqs", ("enter", "backspace", "7", "enter"), 7),
        ("max_num_seqs", ("9", "9", "9", "enter"), 999),
        ("max_num_seqs", ("1", ".", "5", "enter"), 1.5),
        ("max_num_seqs", ("minus", "1", "enter"), -1),
        ("watermark", (".", "2", "enter"), 0.2),
        ("watermark", ("1", "e", "minus", "2", "0", "enter"), 1e-20),
        ("watermark", (".", ".", "enter"), ".."),
    ],
)
async def test_keys(name: str, keys: tuple[str, ...], value: KnobValue) -> None:
    panel = KnobPanel()
    async with hosted(panel, 76, 14, focus=True) as (app, _):
        panel.show(knobs())
        panel.cursor = PLACES[name]
        await press(app, *keys)
        assert posted(app) == [(name, value)]


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("max_num_batched_tokens", ("right",)),  # at the most already
        ("prefill_chunk", ("left",)),
        ("max_num_seqs", ("space",)),
        ("max_num_seqs", ("8", "enter")),  # as it is
        ("max_num_seqs", ("9", "escape")),
        ("max_num_seqs", ("9", "up", "down")),
        ("max_num_seqs", ("9", "backspace", "enter")),
        ("prefix_caching", ("9", "enter", "enter")),
    ],
)
async def test_keys_that_change_nothing(name: str, keys: tuple[str, ...]) -> None:
    panel = KnobPanel()
    async with hosted(panel, 76, 14, focus=True) as (app, _):
        panel.show(knobs())
        panel.cursor = PLACES[name]
        await press(app, *keys)
        if name == "prefix_caching":
            assert posted(app) == [(name, False), (name, True)]
        else:
            assert posted(app) == []


async def test_typing_shows_what_is_typed() -> None:
    panel = KnobPanel()
    async with hosted(panel, 76, 14, focus=True) as (app, _):
        panel.show(knobs())
        await press(app, "down", "1", "2")
        assert "◂      12_ ▸" in rows(panel)[2]


async def test_undo() -> None:
    panel = KnobPanel()
    async with hosted(panel, 76, 14, focus=True) as (app, _):
        panel.show(knobs())
        await press(app, "down", "right", "u")
        assert len(app.sent(KnobPanel.Undone)) == 1
        assert asked(panel, "max_num_seqs") == "8"


async def test_a_refusal_stands_until_the_next_key_and_takes_the_value_back() -> None:
    panel = KnobPanel()
    async with hosted(panel, 76, 14, focus=True) as (app, _):
        panel.show(knobs())
        await press(app, "down", "9", "9", "enter")
        assert asked(panel, "max_num_seqs") == "99"
        with pytest.raises(InvalidConfigError) as refused:
            change_knobs(Knobs(), {"max_num_seqs": 99}, CONFIG, POLICIES)
        panel.refuse(refused.value.message)
        assert asked(panel, "max_num_seqs") == "8"
        assert rows(panel)[-3][2:-2].rstrip() == "✗ max_num_seqs is 99; it must be from 1 to 32"
        panel.show(knobs())
        assert "✗" in rows(panel)[-3]
        await press(app, "down")
        assert "✗" not in "".join(rows(panel))


async def test_clicks_turn() -> None:
    panel = KnobPanel()
    async with hosted(panel, 76, 14, focus=True) as (app, pilot):
        panel.show(knobs())
        for x, row in ((27, 3), (38, 2), (32, 2), (27, 6), (50, 6)):
            await pilot.click(KnobPanel, offset=(x, row))
        assert posted(app) == [
            ("max_num_batched_tokens", 256),
            ("max_num_seqs", 16),
            ("prefix_caching", False),
        ]
        assert panel.cursor == PLACES["prefix_caching"]


async def test_a_long_choice_is_shown_whole() -> None:
    panel = KnobPanel()
    async with hosted(panel, 76, 14):
        panel.show([replace(knobs()[0], requested="shortest_prompt_first")])
        assert " shortest_prompt_first ▾ " in rows(panel)[1]


async def test_few_lines_scroll() -> None:
    panel = KnobPanel()
    async with hosted(panel, 76, 6, focus=True) as (app, _):
        panel.show(knobs())
        await press(app, *("down",) * 8)
        assert [row[4:12].rstrip() for row in rows(panel)[1:4]] == [
            "queue_li",
            "draining",
            "paused",
        ]


def test_numbers_are_parsed_and_the_rest_is_left_to_the_engine() -> None:
    assert [parsed(text) for text in ("12", "-1", "0.5", "1e3", "1.2.3", "-")] == [
        12,
        -1,
        0.5,
        1000.0,
        "1.2.3",
        "-",
    ]


@given(st.data())
def test_turning_ends_at_both_ends_of_the_range_and_the_engine_takes_every_value(
    data: st.DataObject,
) -> None:
    spec = data.draw(st.sampled_from([spec for spec in KNOB_SPECS if spec.step]))
    ledger = KnobLedger(Knobs(), CONFIG, POLICIES)
    knob = next(state for state in ledger.states({}) if state.name == spec.name)
    value = knob.requested
    for up in (True, False):
        for _ in range(64):
            value = turned(knob, value, up)
            assert type(value) is type(knob.requested)
            if spec.name not in ("max_num_seqs", "max_num_batched_tokens"):
                change_knobs(Knobs(), {spec.name: value}, CONFIG, POLICIES)
        assert value == (knob.allowed.high if up else knob.allowed.low)


def test_a_knob_without_steps_turns_by_its_choices() -> None:
    state = KnobState(KnobSpec("k", "a knob"), "b", "b", "", KnobRange(choices=("a", "b", "c")))
    assert turned(state, "b", True) == "c"
    assert turned(state, "c", True) == "a"
    assert turned(state, "a", False) == "c"
    assert turned(state, "gone", True) == "b"
