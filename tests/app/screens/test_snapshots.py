"""How the screens look. `pytest --snapshot-update` accepts what they look like now."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from textual.pilot import Pilot

from app.gateway.view import BadMessage
from app.screens.pump import Pump
from app.screens.tui import Tui
from app.settings.settings import Settings
from app.store.store import Store
from app.system.devices import Devices
from engine.api.client import LoadRequest
from engine.scheduling.policies import policy_names
from tests.app.screens.stage import Stage
from tests.support.clock import VirtualClock
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_gateway import ScriptedGateway
from widgets.panels.device_panel import DeviceReadings

READINGS = DeviceReadings(
    cpu=1.4,
    cores=8,
    rss=612 * 2**20,
    memory_used=9 * 2**30,
    memory_total=32 * 2**30,
    loop_lag=0.007,
    frames=15.0,
)
REPLY = """\
Paged attention stores the key/value cache in fixed-size **blocks**, so that:

- a sequence takes memory as it *grows*
- sequences with one prefix share its blocks

```python
def slot(block_table, pos, bs=16):
    return block_table[pos // bs] * bs + pos % bs
```

| engine | blocks |
|--------|-------:|
| this   |  2,048 |

The rest of it is read as it comes, word by word, and it wraps where the line ends, as this does.
"""
BAD = (BadMessage(0.0, "llm/v1/default/req/eve/1/2", 400, "it is not JSON", "\x1b[2J{"),)
TITLES = ("Explain paged attention.", "SQL help", "A haiku about rain", "Rust borrow checker")


@pytest.fixture(autouse=True)
def frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The same ids, times of day and readings every time; and a pump that waits to be told."""
    ids = itertools.count(1)
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=next(ids) << 80))
    monkeypatch.setattr("app.screens.chats.entries.day_and_time", lambda *_: "14:02")
    for module in ("log_panel", "knob_history", "gateway_panel"):
        monkeypatch.setattr(f"widgets.panels.{module}.time_of_day", lambda seconds: "14:02:11")
    meanings = {name: f"What {name} does." for name in policy_names()}
    meanings |= {"stall_free": "Decodes first.", "static": "A batch runs until its longest ends."}
    monkeypatch.setattr("engine.scheduling.policies.policy_meanings", lambda: meanings)
    monkeypatch.setattr(Devices, "read", lambda self, **_: READINGS)
    monkeypatch.delenv("NO_COLOR", raising=False)
    with patch.object(Pump, "_come_again", Pump.turn):
        yield


Compare = Callable[..., bool]


@pytest.fixture
def look(snap_compare: Compare, tmp_path: Path) -> Iterator[Callable[..., bool]]:
    """Four sessions in the midst of their replies, the first of them on view; with MQTT two more,
    and the second of these on view."""
    stores: list[Store] = []

    def compare(size: tuple[int, int], *keys: str, mqtt: bool = False, **settings: object) -> bool:
        engine = ScriptedEngine(lambda submission: REPLY, loaded=False)
        stores.append(Store(tmp_path / "batchdeck.db"))
        chosen = Settings.model_validate({"data_dir": tmp_path, **settings})
        gateway = ScriptedGateway(engine) if mqtt else None
        app = Tui(engine, stores[-1], chosen, LoadRequest("qwen2.5-0.5b"), gateway)
        app.deck.engine._clock = lambda: 0.0
        keys_clock = app.deck.clock = VirtualClock(0.0)

        async def play(pilot: Pilot[int]) -> None:
            stage = Stage(app, engine, stores[-1], pilot, keys_clock)
            await pilot.pause()
            engine.ready()
            await stage.turn()
            app.clear_notifications()
            for title in TITLES:
                await stage.press("ctrl+n")
                await stage.send(title)
                await stage.turn(11)
            if gateway is not None:
                gateway.show(received=214, published=480, accepted=9, finished=7, bad=BAD)
                for user in ("alice", "bob"):
                    gateway.ask(user, "s1", "Explain paged attention.", priority=2)
                await stage.turn(4)
            engine.set_knobs({"max_num_seqs": 16}, who="you")
            for _ in range(6):
                await stage.turn(3)
            if gateway is not None:
                await stage.press("f2", "end", "enter")
            else:
                await stage.press("alt+1")
            await stage.press(*keys)
            await stage.turn()
            await pilot.pause()

        return snap_compare(app, terminal_size=size, run_before=play)

    yield compare
    for store in stores:
        store.close()


def test_chat_80x24(look: Compare) -> None:
    assert look((80, 24))


def test_both_160x48(look: Compare) -> None:
    assert look((160, 48))


def test_broker_160x48(look: Compare) -> None:
    assert look((160, 48), "f2", "8", "down", mqtt=True)


def test_light_120x40(look: Compare) -> None:
    assert look((120, 40), "f2", theme="light")
