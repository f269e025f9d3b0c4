from __future__ import annotations

import math
import unicodedata
from dataclasses import replace

import pytest
from rich.cells import cell_len

from app.gateway.view import BadMessage, UserView
from engine.api.telemetry import Distribution
from tests.widgets.hosting import hosted, press, resize, rows, settle
from tests.widgets.samples import MQTT, NOON
from widgets.glyphs import ASCII, UNICODE
from widgets.panels.gateway_panel import MqttPanel
from widgets.panels.gateway_readings import BrokerState, MqttReadings

MANY = replace(
    MQTT, bad=tuple(BadMessage(NOON - n, f"topic/{n}", 400, f"reason {n}", "x") for n in range(20))
)


def texts(panel: MqttPanel) -> list[str]:
    """The texts within the frame."""
    return [row[2:-2].rstrip() for row in rows(panel)[1:-1]]


async def shown(readings: MqttReadings | None, width: int, height: int = 24) -> list[str]:
    panel = MqttPanel()
    async with hosted(panel, width, height):
        panel.show(readings)
        return [line for line in texts(panel) if line]


async def test_everything_at_once() -> None:
    panel = MqttPanel()
    async with hosted(panel, 78, 11):
        panel.show(MQTT)
        assert rows(panel) == [
            "╭─ MQTT · default/gpu-1 ─────────────────────────────────────────────────────╮",
            "│ ✓ online 2h04m · MQTT 5 · mqtts://broker.example.org:8883                  │",
            "│ in/s     12       out/s    478      live     8        accepted 1.2k        │",
            "│ no token 3        finished 1.2k     unacked  0        rejected 14          │",
            "│ publish to first token p50 190ms p99 640ms                                 │",
            "│ rejected 12 over the quota (429) · 2 not JSON (400)                        │",
            "│ users fleet 6, 3 no token · alice 2 · eve 0, 14 rejected                   │",
            "│ 2 bad messages                                                             │",
            "│   22:13:20 400 the request is not JSON: Expecting value at column 17 · ll… │",
            "│   22:12:20 413 it has 300,000 bytes · llm/v1/default/req/東京/x/1 · 東京   │",
            "╰────────────────────────────────────────────────────────────────────────────╯",
        ]


async def test_a_narrow_panel_breaks_between_the_parts() -> None:
    assert await shown(MQTT, 30) == [
        "✓ online 2h04m · MQTT 5",
        "mqtts://broker.example.or…",
        "in/s     12  out/s    478",
        "live     8   accepted 1.2k",
        "no token 3   finished 1.2k",
        "unacked  0   rejected 14",
        "ttft p50 190ms p99 640ms",
        "rejected",
        "  12 over the quota (429)",
        "  2 not JSON (400)",
        "users fleet 6, 3 no token",
        "  alice 2",
        "  eve 0, 14 rejected",
        "2 bad messages",
        "  400 the request is not…",
        "  413 it has 300,000 byte…",
    ]


async def test_without_a_gateway_it_says_how_to_have_one() -> None:
    assert " ".join(await shown(None, 60)) == MqttPanel.OFF
    assert await shown(None, 124) == [MqttPanel.OFF]


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (BrokerState.CONNECTING, ("◐ connecting", "% connecting")),
        (BrokerState.OFFLINE, ("✗ offline", "x offline")),
        (BrokerState.TAKEN_OVER, ("⇄ taken over", "< taken over")),
        (BrokerState.STOPPED, ("■ stopped", "= stopped")),
    ],
)
async def test_each_state_is_a_mark_and_a_word_and_why(
    state: BrokerState, words: tuple[str, str]
) -> None:
    readings = replace(MQTT, state=state, detail="connection refused", lasted=12.0, protocol="")
    for glyphs, word in zip((UNICODE, ASCII), words, strict=True):
        panel = MqttPanel(glyphs)
        async with hosted(panel, 60, 16):
            panel.show(readings)
            lines = texts(panel)
            assert lines[0].startswith(f"{word} 12s")
            assert lines[1] == "connection refused"


async def test_what_is_not_known_yet() -> None:
    lines = await shown(replace(MQTT, rejected=(), bad=(), users=(), first_token=NONE), 78)
    assert lines[3:] == ["publish to first token no sample"]


NONE = Distribution(0, math.nan, math.nan, math.nan)


async def test_what_is_left_out_of_a_list_is_counted() -> None:
    users = tuple(UserView(f"user-{n}", 1, 0, 0) for n in range(9))
    assert "user-5 1 · +3 more" in " ".join(await shown(replace(MQTT, users=users), 120))


async def test_a_large_panel_has_a_row_for_each_user_and_whole_messages() -> None:
    """With the whole screen for itself, it was nearly empty."""
    panel = MqttPanel()
    async with hosted(panel, 60, 30):
        for received in (0.0, 6.0, 12.0):
            panel.show(replace(MQTT, received=received))
        lines = texts(panel)
        assert next(line.split() for line in lines if line.endswith("█")) == ["in/s", "▁▅█"]
        start = next(n for n, line in enumerate(lines) if line.startswith("users"))
        assert [line.split() for line in lines[start : start + 4]] == [
            ["users", "live", "no", "token", "rejected"],
            ["fleet", "6", "3", "0"],
            ["alice", "2", "0", "0"],
            ["eve", "0", "0", "14"],
        ]
        start = lines.index("  llm/v1/default/req/fleet/bot-3/7") + 1
        assert lines[start : start + 5] == [
            '  {"v":1,"messages":\\x1b[2J \\u202e[{"role":\\n"user"}',
            "  22:12:20 413 it has 300,000 bytes",
            "  llm/v1/default/req/東京/x/1",
            "  東京",
            "",
        ]
        panel.show(replace(MANY, users=MQTT.users * 5))
        assert "+6 more" in texts(panel)
        assert len([line for line in texts(panel) if "topic/" in line]) > 3  # in a row each


HOSTILE = "".join(
    chr(point)
    for point in range(0x110000)
    if unicodedata.category(chr(point)) in ("Cc", "Cf", "Cs", "Zl", "Zp")
)


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
async def test_whatever_comes_is_text_and_nothing_else(glyphs: object) -> None:
    assert len(HOSTILE) > 2000
    panel = MqttPanel(glyphs)  # type: ignore[arg-type]  # one of the two
    pieces = [HOSTILE[start : start + 60] for start in range(0, 300, 60)] + [HOSTILE[-60:]]
    for text in (*pieces, "\x1b]52;c;aGk=\x07\x1b[2J\r\n\u202eabc\ud800", "東" * 40):
        readings = replace(
            MQTT,
            detail=text,
            bad=(BadMessage(NOON, text, 400, text, text),),
            users=(UserView(text, 1, 0, 0),),
        )
        async with hosted(panel, 60, 30, focus=True) as (app, _):
            panel.show(readings)
            await press(app, "down")
            for y in range(30):
                line = panel.render_line(y).text
                assert line.isprintable()
                assert cell_len(line) == 60
                assert line.isascii() or glyphs is UNICODE
        panel = MqttPanel(glyphs)  # type: ignore[arg-type]


async def test_an_excerpt_can_be_read_whole() -> None:
    panel = MqttPanel()
    async with hosted(panel, 60, 24, focus=True) as (app, _):
        panel.show(MQTT)
        await press(app, "down")
        lines = texts(panel)
        start = next(i for i, line in enumerate(lines) if line.startswith("▸"))
        assert lines[start : start + 6] == [
            "▸ 22:13:20 400 the request is not JSON: Expecting value",
            "               at column 17",
            "  llm/v1/default/req/fleet/bot-3/7",
            '  {"v":1,"messages":\\x1b[2J \\u202e[{"role":\\n"user"}',
            "  22:12:20 413 it has 300,000 bytes · llm/v1/default/re…",
            "",
        ]


async def test_the_cursor_stays_with_its_message_while_others_come() -> None:
    panel = MqttPanel()
    async with hosted(panel, 60, 16, focus=True) as (app, _):
        panel.show(MANY)
        assert panel.chosen is None
        await press(app, "down", "down")
        chosen = panel.chosen
        assert chosen == MANY.bad[1]
        newer = BadMessage(NOON + 1, "topic", 400, "newer", "")
        panel.show(replace(MANY, bad=(newer, *MANY.bad[:19])))
        assert panel.chosen == chosen
        panel.show(replace(MANY, bad=(newer,)))
        assert panel.chosen is None


async def test_all_can_be_reached_in_a_panel_of_any_height() -> None:
    panel = MqttPanel()
    async with hosted(panel, 44, 8, focus=True) as (app, _):
        panel.show(MANY)
        seen = set(texts(panel))
        for _ in range(24):
            await press(app, "down")
            assert any(line.startswith("▸") for line in texts(panel))
            seen |= set(texts(panel))
        assert sum("topic/" in line for line in seen) >= 20
        await press(app, "home")
        assert texts(panel)[0].startswith("✓ online")
        await press(app, "end")
        assert "▸" in "".join(texts(panel))
        await resize(app, panel, 44, 60)
        assert panel.first == 0
        await resize(app, panel, 44, 8)
        await press(app, "up")
        assert panel.first > 0
        app.set_focus(None)
        await settle(app)
        assert panel.first == 0


async def test_what_is_read_stays_where_it_is_while_newer_ones_come() -> None:
    panel = MqttPanel()
    async with hosted(panel, 60, 14, focus=True) as (app, _):
        panel.show(replace(MANY, bad=MANY.bad[10:]))
        await press(app, "down", "down")
        before = next(y for y, row in enumerate(rows(panel)) if "reason 11" in row)
        for newest in range(9, 2, -1):
            panel.show(replace(MANY, bad=MANY.bad[newest : newest + 10]))
            assert "▸ " in rows(panel)[before]
            assert "reason 11" in rows(panel)[before]
        panel.show(replace(MANY, bad=MANY.bad[:10]))
        assert panel.chosen is None


async def test_the_edge_says_how_many_bad_messages_are_out_of_view() -> None:
    panel = MqttPanel()
    async with hosted(panel, 60, 14, focus=True):
        panel.show(MANY)
        seen = sum("reason " in row for row in rows(panel))
        assert f" {20 - seen} bad messages below " in rows(panel)[-1]
        panel.scroll(panel.num_rows - panel.page - 1)
        panel.redraw()
        assert " 1 bad message below " in rows(panel)[-1]
        panel.scroll(panel.num_rows)
        panel.redraw()
        assert "below" not in rows(panel)[-1]
        assert "reason 19" in rows(panel)[-2]


async def test_without_bad_messages_the_keys_scroll() -> None:
    panel = MqttPanel()
    async with hosted(panel, 30, 6, focus=True) as (app, _):
        panel.show(replace(MQTT, bad=()))
        await press(app, "down", "down")
        assert panel.first == 2
        await press(app, "pagedown", "home")
        assert panel.first == 0


async def test_r_asks_for_a_new_connection() -> None:
    panel = MqttPanel()
    async with hosted(panel, 60, 12, focus=True) as (app, _):
        await press(app, "r")
        assert app.sent(MqttPanel.ReconnectWanted) == []
        panel.show(MQTT)
        await press(app, "r")
        assert len(app.sent(MqttPanel.ReconnectWanted)) == 1


@pytest.mark.parametrize("size", [(1, 1), (12, 3), (16, 4), (30, 8), (160, 40)])
async def test_any_size(size: tuple[int, int]) -> None:
    for readings in (None, MANY, replace(MQTT, detail="why " * 40)):
        panel = MqttPanel()
        async with hosted(panel, *size, focus=True) as (app, _):
            panel.show(readings)
            await press(app, "down", "end", "pageup")
            assert all(cell_len(panel.render_line(y).text) == size[0] for y in range(size[1]))


async def test_what_unacked_means_is_said_first_where_all_does_not_fit() -> None:
    panel = MqttPanel()
    async with hosted(panel, 41, 8, focus=True):
        panel.show(replace(MANY, bad=()))
        assert "unacked: endings not yet confirmed" in rows(panel)[-1]
