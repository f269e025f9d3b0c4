from __future__ import annotations

from dataclasses import replace

import pytest

from engine.api.errors import InvalidConfigError
from engine.api.knob_spec import KnobValue
from engine.api.knobs import Knobs, change_knobs
from tests.widgets.hosting import Host, hosted, lay_out, paste, press, rows, screen
from tests.widgets.samples import CONFIG, EFFECT, POLICIES, change, history, knobs
from widgets.panels.knob_panel import KnobPanel


def posted(app: Host) -> list[tuple[str, KnobValue]]:
    return [(message.name, message.value) for message in app.sent(KnobPanel.Turned)]


def asked(panel: KnobPanel, name: str) -> str:
    """The value on the screen, between its arrows."""
    panel.current = name
    panel.redraw()
    row = next(row for row in rows(panel) if f" {name} " in row)
    return row[row.index(name) + len(name) :].strip("┃│█ ◂▸").split("  ")[0].strip(" ▸")


def names(panel: KnobPanel) -> list[str]:
    """The names in view, from top to bottom, as they are set in."""
    known = {knob.name for knob in knobs()}
    return [row[4:26].rstrip() for row in rows(panel) if row[4:26].strip() in known]


def turned_to(panel: KnobPanel, **values: KnobValue) -> None:
    """Have the engine follow."""
    panel.show([replace(k, requested=values.get(k.name, k.requested)) for k in knobs()])


async def test_what_a_knob_is_ignored_by_is_told_in_whole_words() -> None:
    """Beside the chat the notes were cut to "ig…"."""
    panel = KnobPanel()
    for width, said in ((64, "ignored by stall_free"), (52, "ignored"), (46, "")):
        async with hosted(panel, width, 27):
            panel.show(knobs())
            (row,) = (row for row in rows(panel) if "static_fill" in row)
            assert row.partition("▸")[2].strip(" │") == said


async def test_asked_for_beside_in_force() -> None:
    panel = KnobPanel()
    async with hosted(panel, 76, 27):
        panel.show(knobs())
        assert rows(panel) == [
            "╭─ Knobs · p policy · h history · u undo ──────────────────────────────────╮",
            "│ ▸ policy                 ◂ stall_free ▸                                  │",
            "│     prefill_chunk        ◂        0 ▸                                    │",
            "│     max_partial_prefills ◂        0 ▸                                    │",
            "│   order                  ◂ priority ▸                                    │",
            "│     ageing               ◂       1m ▸                                    │",
            "│   victim                 ◂ lowest_priority ▸                             │",
            "│   preemption             ◂ auto     ▸  now recompute  no host memory is… │",
            "│   max_num_seqs           ◂        8 ▸  now 12  4 more than requested st… │",
            "│   max_num_batched_tokens ◂      512 ▸                                    │",
            "│   watermark              ◂     0.01 ▸                                    │",
            "│   prefix_caching         [x]                                             │",
            "│   ttft_target_ms         ◂    1.00s ▸                                    │",
            "│   tpot_target_ms         ◂    100ms ▸                                    │",
            "│   queue_limit            ◂     1000 ▸                                    │",
            "│   draining               [ ]                                             │",
            "│   paused                 [ ]                                             │",
            "│   static_batch_size      ◂        8 ▸  ignored by stall_free             │",
            "│   static_fill            ◂ idle     ▸  ignored by stall_free             │",
            "│   batch_window_ms        ◂    100ms ▸  ignored by stall_free             │",
            "│   waiting_served_ratio   ◂      0.3 ▸  ignored by stall_free             │",
            "│   max_waiting_tokens     ◂       20 ▸  ignored by stall_free             │",
            "│   user_weights             –           ignored by priority               │",
            "│                                                                          │",
            "│ which batching policy composes each step: one of 'stall_free', 'static', │",
            "│ 'dynamic'.                                                               │",
            "╰─ ←/→ turn · enter edits ─────────────────────────────────────────────────╯",
        ]
        ignored = [s.style for s in panel.render_line(17) if "static" in s.text]
        assert ignored == [panel.palette.muted]


async def test_a_high_panel_shows_what_the_last_change_did() -> None:
    panel = KnobPanel()
    for height, shown in ((44, True), (27, False)):
        async with hosted(panel, 76, height):
            panel.show(knobs(), history(), effect=EFFECT)
            assert any("tok/s           310          402" in row for row in rows(panel)) is shown
            assert "which batching policy" in rows(panel)[-3]


async def test_what_is_in_force_is_seen_in_a_narrow_panel_too() -> None:
    panel = KnobPanel()
    async with hosted(panel, 40, 14):
        panel.show(knobs())
        assert "│   max_num_seqs  ◂        8 ▸  now 12 │" in rows(panel)
        assert any("victim" in row and "◂ lowest_priority ▸" in row for row in rows(panel))
    async with hosted(panel, 36, 14):
        panel.show(knobs())
        assert "│   preem… ◂ auto ▸  now recompute │" in rows(panel)


async def test_another_policy_brings_its_knobs_up_and_the_cursor_stays_on_its_knob() -> None:
    panel = KnobPanel()
    async with hosted(panel, 76, 26, focus=True) as (app, _):
        panel.show(knobs())
        await press(app, *("down",) * 7)
        assert panel.current == "max_num_seqs"
        before = names(panel)
        static = []
        for knob in knobs(policy="static"):
            acts = knob.name in ("static_batch_size", "static_fill")
            unused = knob.spec.acts == "policy" and not acts
            note = "ignored by static" if unused else "" if acts else knob.note
            static.append(replace(knob, note=note))
        panel.show(static)
        assert panel.current == "max_num_seqs"
        assert names(panel)[:4] == ["policy", "  static_batch_size", "  static_fill", "order"]
        assert names(panel)[-3:] == ["waiting_served_ratio", "max_waiting_tokens", "user_weights"]
        assert sorted(name.strip() for name in names(panel)) == sorted(n.strip() for n in before)


async def test_the_knob_under_the_cursor_is_explained_in_full() -> None:
    panel = KnobPanel()
    async with hosted(panel, 76, 26, focus=True):
        panel.show(knobs())

        def told(name: str) -> str:
            panel.current = name
            panel.redraw()
            return " ".join(row[2:-2].strip() for row in rows(panel)[-3:-1])

        assert told("max_num_seqs") == (
            "most sequences running at once: from 1 to 32 sequences. "
            "Now 12: 4 more than requested still run."
        )
        assert told("batch_window_ms").endswith(" Ignored by stall_free.")


async def test_turning_doubles_and_halves_within_the_range() -> None:
    panel = KnobPanel()
    async with hosted(panel, 76, 14, focus=True) as (app, _):
        panel.show(knobs())
        panel.current = "max_num_seqs"
        await press(app, "right", "right", "right", "left")
        # Each turn starts from the last, though the engine has not answered yet; 32 is the most.
        turns = [("max_num_seqs", value) for value in (16, 32, 16)]
        assert posted(app) == turns
        assert asked(panel, "max_num_seqs") == "16"


async def test_the_engine_catching_up_does_not_turn_the_knob_back() -> None:
    panel = KnobPanel()
    async with hosted(panel, 76, 14, focus=True) as (app, _):
        panel.show(knobs())
        panel.current = "max_num_seqs"
        await press(app, "right", "right")
        for seen, shown in ((8, "32"), (16, "32"), (32, "32"), (5, "5")):
            turned_to(panel, max_num_seqs=seen)
            assert asked(panel, "max_num_seqs") == shown


async def test_somebody_elses_change_counts() -> None:
    panel = KnobPanel()
    async with hosted(panel, 76, 14, focus=True) as (app, _):
        panel.show(knobs())
        panel.current = "max_num_seqs"
        await press(app, "right")
        turned_to(panel, max_num_seqs=3)
        assert asked(panel, "max_num_seqs") == "3"


@pytest.mark.parametrize(
    ("name", "keys", "value"),
    [
        ("policy", ("right",), "static"),
        ("policy", ("left",), "dynamic"),
        ("policy", ("enter",), "static"),
        ("policy", ("space",), "static"),
        ("user_weights", ("enter", *"alice=2,bo", "space", "enter"), "alice=2,bo "),
        ("user_weights", ("enter", *"hup", "enter"), "hup"),
        ("max_num_seqs", ("left",), 4),
        ("max_num_batched_tokens", ("left",), 256),
        ("prefill_chunk", ("right",), 16),
        ("watermark", ("right",), 0.02),
        ("watermark", ("left",), 0.0),
        ("prefix_caching", ("space",), False),
        ("paused", ("enter",), True),
        ("draining", ("right",), True),
        ("max_num_seqs", ("enter", "6", "enter"), 6),
        ("max_num_seqs", ("enter", "1", "2", "backspace", "4", "enter"), 14),
        ("max_num_seqs", ("enter", "backspace", "7", "enter"), 7),
        ("max_num_seqs", ("enter", "1", "x", "space", "2", "enter"), 12),
        ("max_num_seqs", ("enter", "9", "9", "9", "enter"), 999),
        ("max_num_seqs", ("enter", "1", ".", "5", "enter"), 1.5),
        ("max_num_seqs", ("enter", "minus", "1", "enter"), -1),
        ("watermark", ("enter", ".", "2", "enter"), 0.2),
        ("watermark", ("enter", "1", "e", "minus", "2", "0", "enter"), 1e-20),
        ("watermark", ("enter", ".", ".", "enter"), ".."),
    ],
)
async def test_keys(name: str, keys: tuple[str, ...], value: KnobValue) -> None:
    panel = KnobPanel()
    async with hosted(panel, 76, 14, focus=True) as (app, _):
        panel.show(knobs())
        panel.current = name
        await press(app, *keys)
        assert posted(app) == [(name, value)]


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("max_num_batched_tokens", ("right",)),  # at the most already
        ("prefill_chunk", ("left",)),
        ("max_num_seqs", ("space",)),
        ("max_num_seqs", ("enter", "8", "enter")),  # as it is
        ("max_num_seqs", ("enter", "9", "escape")),
        ("max_num_seqs", ("enter", "9", "up", "down")),
        ("max_num_seqs", ("enter", "9", "backspace", "enter")),
        ("user_weights", ("enter", *"alice=2", "escape")),
        ("user_weights", ("1", "right", "enter", "enter")),
        ("max_num_seqs", ("6", "enter", "enter")),  # a digit begins nothing
        ("max_num_seqs", ("enter", "enter")),
        ("prefix_caching", ("9", "enter", "enter")),
    ],
)
async def test_keys_that_change_nothing(name: str, keys: tuple[str, ...]) -> None:
    panel = KnobPanel()
    async with hosted(panel, 76, 14, focus=True) as (app, _):
        panel.show(knobs())
        panel.current = name
        await press(app, *keys)
        if name == "prefix_caching":
            assert posted(app) == [(name, False), (name, True)]
        else:
            assert posted(app) == []


async def test_a_time_is_shown_with_its_unit_and_typed_as_a_plain_number() -> None:
    panel = KnobPanel()
    async with hosted(panel, 76, 27, focus=True) as (app, _):
        slow = {"ageing": 90.0, "tpot_target_ms": 0.0}
        panel.show([replace(k, requested=slow.get(k.name, k.requested)) for k in knobs()])
        assert any("◂    1m30s ▸  now 1m" in row for row in rows(panel))
        assert asked(panel, "tpot_target_ms") == "0"
        assert asked(panel, "ttft_target_ms") == "1.00s"
        await press(app, "enter")
        assert asked(panel, "ttft_target_ms") == "1000.0_"


async def test_typing_shows_what_is_typed() -> None:
    panel = KnobPanel()
    async with hosted(panel, 76, 14, focus=True) as (app, _):
        panel.show(knobs())
        panel.current = "ageing"
        await press(app, "enter")
        assert "60.0_ ▸" in rows(panel)[5]
        await press(app, "1", "2")
        assert "◂      12_ ▸" in rows(panel)[5]
        await press(app, "x")
        assert "◂      12_ ▸" in rows(panel)[5]
        assert "✗ ageing is a number from 0 to 86,400; Enter sets it" in rows(panel)[-3]
        assert rows(panel)[-1].startswith("┗━ enter sets · esc leaves it as it was ━")
        await press(app, "escape")
        assert "_" not in asked(panel, "ageing")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("max_num_seqs", "max_num_seqs is from 1 to 32; enter edits it, ← and → turn it"),
        ("static_fill", "static_fill is one of 'idle', 'full'; ← and → turn it"),
        ("user_weights", " at most 4,096 characters; enter edits it"),
    ],
)
async def test_a_character_that_does_nothing_is_answered(name: str, told: str) -> None:
    panel = KnobPanel()
    async with hosted(panel, 90, 30, focus=True) as (app, _):
        panel.show(knobs())
        panel.current = name
        await press(app, "n")
        assert told in " ".join(row[2:-2].rstrip() for row in rows(panel)[-3:-1])
        await press(app, "h")  # a key of the panel
        assert "✗" not in "".join(rows(panel))
        assert posted(app) == []


async def test_a_text_is_edited_and_emptied_and_its_end_is_seen() -> None:
    panel = KnobPanel()
    async with hosted(panel, 40, 14, focus=True) as (app, _):
        panel.show([replace(k, note="") for k in knobs(user_weights="alice=2")])
        panel.current = "user_weights"
        await press(app, "enter", *",bob=0.5,carol=3")
        assert " ob=0.5,carol=3_ " in next(row for row in rows(panel) if "user_weights" in row)
        await press(app, "enter", "enter", *(["backspace"] * 40), "enter")
        assert posted(app) == [
            ("user_weights", "alice=2,bob=0.5,carol=3"),
            ("user_weights", ""),
        ]


async def test_a_value_is_pasted_and_a_wrong_one_answered() -> None:
    panel = KnobPanel()
    async with hosted(panel, 76, 14, focus=True) as (app, _):
        panel.show(knobs())
        panel.current = "max_num_seqs"
        await press(app, "enter")
        await paste(app, "many")
        assert asked(panel, "max_num_seqs") == "8_"
        assert "✗ max_num_seqs is a number from 1 to 32; Enter sets it" in rows(panel)[-3]
        await paste(app, "16\n")
        assert "✗" not in "".join(rows(panel))
        await lay_out(app)
        assert "◂      16  ▸" in "".join(screen(app))
        await press(app, "left", "left", "2", "enter")
        assert posted(app) == [("max_num_seqs", 216)]
        panel.current = "user_weights"
        await press(app, "enter")
        await paste(app, "alice=2,bob=0.5")
        await press(app, "enter")
        assert posted(app)[-1] == ("user_weights", "alice=2,bob=0.5")
        assert panel.has_focus


async def test_tab_goes_on_from_the_panel_and_leaves_the_value() -> None:
    panel = KnobPanel()
    async with hosted(panel, 76, 14, focus=True) as (app, _):
        panel.show(knobs())
        panel.current = "max_num_seqs"
        await press(app, "enter", "9", "tab")
        assert panel.has_focus  # there is nothing else to go to
        assert posted(app) == []
        assert asked(panel, "max_num_seqs") == "8"


async def test_pages() -> None:
    panel = KnobPanel()
    async with hosted(panel, 76, 12, focus=True) as (app, _):
        panel.show(knobs())
        places = []
        for key in ("pagedown", "pagedown", "pageup", "end", "home"):
            await press(app, key)
            places.append(panel.cursor)
            assert "▸ " in "".join(row[2:4] for row in rows(panel)[1:-3])
        assert places == [7, 14, 7, 21, 0]


async def test_the_history_in_place_of_the_knobs() -> None:
    panel = KnobPanel()
    async with hosted(panel, 60, 12, focus=True) as (app, _):
        panel.show(knobs(), history(), effect=EFFECT)
        assert rows(panel)[-1].startswith(
            "┗━ tok/s 310→402 · TTFT p50 190→240ms · ITL p99 300→60ms ━"
        )
        await press(app, "h")
        assert rows(panel)[0].startswith("┏━ Knobs · history · h back · u undo ━")
        assert "tok/s           310          402" in rows(panel)[2]
        # Keys do not turn what is not on view.
        await press(app, "right", "space", "enter", "5", "enter")
        await panel.app.workers.wait_for_complete()
        assert posted(app) == []
        panel.refuse("no model is loaded")
        assert "✗ no model is loaded" in "".join(rows(panel))
        await press(app, "h")
        assert "policy" in rows(panel)[1]


async def test_a_long_history_scrolls() -> None:
    panel = KnobPanel()
    many = [replace(change(), time=float(n), who=f"user{n}") for n in range(30)]
    async with hosted(panel, 60, 8, focus=True) as (app, _):
        panel.show(knobs(), many)
        await press(app, "h")
        assert "user29 " in rows(panel)[1]
        assert "█" in "".join(row[-1] for row in rows(panel))
        await press(app, "down")
        assert "user28 " in rows(panel)[1]
        await press(app, "end")
        assert "user0 " in rows(panel)[6]
        await press(app, "pageup", "home")
        assert "user29 " in rows(panel)[1]


async def test_turns_that_are_taken_back_are_forgotten() -> None:
    panel = KnobPanel()
    async with hosted(panel, 76, 14, focus=True) as (app, _):
        panel.show(knobs())
        panel.current = "max_num_seqs"
        await press(app, "right")
        assert asked(panel, "max_num_seqs") == "16"
        panel.forget()
        assert asked(panel, "max_num_seqs") == "8"


async def test_a_refusal_stands_until_the_next_key_and_keeps_what_was_typed() -> None:
    panel = KnobPanel()
    async with hosted(panel, 76, 14, focus=True) as (app, _):
        panel.show(knobs())
        panel.current = "max_num_seqs"
        await press(app, "enter", "9", "9", "enter")
        assert asked(panel, "max_num_seqs") == "99"
        with pytest.raises(InvalidConfigError) as refused:
            change_knobs(Knobs(), {"max_num_seqs": 99}, CONFIG, POLICIES)
        panel.refuse(refused.value.message)
        assert asked(panel, "max_num_seqs") == "99_"
        assert rows(panel)[-3][2:-2].rstrip() == "✗ max_num_seqs is 99; it must be from 1 to 32"
        panel.show(knobs())
        assert "✗" in rows(panel)[-3]
        await press(app, "backspace", "enter")
        assert "✗" not in "".join(rows(panel))
        assert posted(app)[-1] == ("max_num_seqs", 9)
        await press(app, "right")
        panel.refuse("no")  # what was turned and not typed is taken back
        assert asked(panel, "max_num_seqs") == "8"


async def test_clicks_turn() -> None:
    panel = KnobPanel()
    async with hosted(panel, 76, 26, focus=True) as (app, pilot):
        panel.show(knobs())
        for x, row in ((27, 9), (38, 8), (32, 8), (27, 11), (50, 11), (40, 1), (27, 1)):
            await pilot.click(KnobPanel, offset=(x, row))
        assert posted(app) == [
            ("max_num_batched_tokens", 256),
            ("max_num_seqs", 16),
            ("prefix_caching", False),
            ("policy", "static"),
            ("policy", "stall_free"),
        ]
        assert panel.current == "policy"


async def test_a_long_choice_is_shown_whole() -> None:
    panel = KnobPanel()
    async with hosted(panel, 76, 14):
        panel.show([replace(knobs()[0], requested="shortest_prompt_first")])
        assert " ◂ shortest_prompt_first ▸ " in rows(panel)[1]


async def test_few_lines_scroll() -> None:
    panel = KnobPanel()
    async with hosted(panel, 76, 6, focus=True) as (app, _):
        panel.show(knobs())
        await press(app, *("down",) * 9)
        assert names(panel)[:3] == ["max_num_seqs", "max_num_batched_tokens", "watermark"]
