"""Picture: what is to be seen on a picture, and the run that it is taken of."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from app.commands.demo import KNOBS, POOL_BLOCKS, load_paced
from app.screens.demo.crowd import Crowd
from app.screens.tui import Tui
from app.settings.settings import Settings
from app.store.store import Store
from benchmarks.screenshots.svg import small
from engine.api.client import LoadRequest
from engine.api.status import EnginePhase
from engine.serving.host import EngineHost

SEED = 15
TURN_SECONDS = 0.25
WAIT_SECONDS = 120.0
# A chat on view has at least so many messages, and its last reply streams.
MESSAGES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture to be taken.

    Attributes:
        name: of the file.
        size: columns and lines.
        keys: pressed once the crowd chats.
        seconds: that the crowd chats at least.
        is_seen: whether there is to be seen what the picture is for.
        theme: None is the dark one.
    """

    name: str
    size: tuple[int, int]
    keys: tuple[str, ...] = ()
    seconds: float = 20.0
    is_seen: Callable[[Tui], bool]
    theme: str | None = None


def _is_crowded(app: Tui) -> bool:
    """Whether somebody was preempted, others stream, and others wait."""
    snapshot = app.deck.engine.snapshot
    return (
        snapshot is not None
        and snapshot.totals.preemptions > 0
        and snapshot.num_running > 3
        and snapshot.num_waiting > 0
    )


def _shows_all(app: Tui) -> bool:
    return _is_crowded(app) and _reads_well(app)


def _reads_well(app: Tui) -> bool:
    """Whether the chat on view has some messages, the last of them half-way."""
    messages = app.deck.sessions.current.chat.messages
    return len(messages) >= MESSAGES and len(messages[-1].content) > 40


def _has_code(app: Tui) -> bool:
    """Whether the chat on view has a block of code."""
    messages = app.deck.sessions.current.chat.messages
    return len(messages) >= MESSAGES and any("```" in m.content for m in messages[-3:])


PICTURES = (
    Picture(name="overview", size=(160, 48), is_seen=_shows_all),
    Picture(name="chat", size=(100, 30), is_seen=_has_code),
    Picture(name="engine", size=(120, 40), keys=("f2",), is_seen=_is_crowded),
    Picture(name="light", size=(160, 48), is_seen=_shows_all, theme="light"),
)


async def take(picture: Picture) -> str:
    """Run the interface until what is wanted is seen; returns the picture as SVG.

    Raises:
        TimeoutError: it was not seen in time.
    """
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings.model_validate({"data_dir": Path(folder), "theme": picture.theme})
        store = Store(settings.store_file)
        client = EngineHost(load_paced)
        load = LoadRequest("builtin", num_blocks=POOL_BLOCKS, knobs=KNOBS)
        app = Tui(client, store, settings, load)
        try:
            async with app.run_test(size=picture.size) as pilot:
                await _until(lambda: app.deck.engine.status.phase is EnginePhase.READY)
                started = time.monotonic()
                crowd = Crowd(app.deck.sessions, time.monotonic, SEED)
                await pilot.press(*picture.keys)

                def is_seen() -> bool:
                    crowd.turn()
                    _look_around(app, picture)
                    return time.monotonic() > started + picture.seconds and picture.is_seen(app)

                await _until(is_seen)
                app.clear_notifications()
                app.deck.pump.turn(everything=True)
                await pilot.pause()
                return small(app.export_screenshot(title="batchdeck", simplify=True))
        finally:
            app.ending.complete()
            store.close()


def _look_around(app: Tui, picture: Picture) -> None:
    """Have the chat on view that shows most."""
    if picture.is_seen(app):
        return
    sessions = app.deck.sessions
    before = sessions.current
    for session in sessions.sessions:
        sessions.current = session
        if picture.is_seen(app):
            break
    else:
        sessions.current = before
    if sessions.current is not before:
        app.deck.switched()


async def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("what the picture is for was not seen")
        await asyncio.sleep(TURN_SECONDS)
