"""Stage: the application over a scripted engine, its time in the hands of the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from pathlib import Path
from unittest.mock import patch

from textual.pilot import Pilot
from textual.worker import WorkerCancelled

from app.gateway.http.view import HttpSide
from app.screens.chats.sessions import SessionList
from app.screens.deck.deck import Deck
from app.screens.pump import Pump
from app.screens.tui import Tui
from app.settings.settings import Settings
from app.store.store import Store
from engine.api.client import LoadRequest, Submission
from engine.api.config import EngineConfig
from tests.support.clock import VirtualClock
from tests.support.replies import echo
from tests.support.scripted_core import CONFIG
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_gateway import ScriptedGateway
from tests.widgets.hosting import lay_out, press, screen, settle, toasts

Replies = Mapping[str, str] | Callable[[Submission], str]

TURN_SECONDS = 2.0
SCRIPTED = LoadRequest("scripted")

REPLIES = {
    "one": "The first reply.",
    "two": "The second reply.",
    "code": "Here:\n\n```python\nx = 1\n```\n\nThat is all.",
    "long": "word " * 400,
    "lines": "".join(f"line {n}  \n" for n in range(200)),
}


class Stage:
    """A running `Tui`. Nothing moves but by `turn`, unless the stage is live.

    Args:
        keys: the deck's clock, by which keys are stray or meant; a turn takes `TURN_SECONDS` of it.
    """

    def __init__(
        self,
        app: Tui,
        engine: ScriptedEngine,
        store: Store,
        pilot: Pilot[int],
        keys: VirtualClock,
        gateway: ScriptedGateway | None = None,
    ) -> None:
        self.app = app
        self.engine = engine
        self.store = store
        self.pilot = pilot
        self._gateway = gateway
        self._keys = keys

    @property
    def deck(self) -> Deck:
        return self.app.deck

    @property
    def sessions(self) -> SessionList:
        return self.deck.sessions

    @property
    def gateway(self) -> ScriptedGateway:
        assert self._gateway is not None, "this stage has no gateway"
        return self._gateway

    @property
    def prompt(self) -> str:
        return self.deck.chat.prompt.text

    @property
    def transcript(self) -> str:
        return self.deck.chat.transcript.text

    @property
    def toasts(self) -> list[str]:
        """The notices on the screen, oldest first."""
        return toasts(self.app)

    async def screen(self) -> str:
        """All that is on the screen, once it is laid out."""
        await self.settle()
        return "\n".join(screen(self.app))

    async def settle(self) -> None:
        """Let all that was asked of the screen be done and laid out. `Pilot.pause` waits for the
        processor to be idle, and so for what runs beside the tests."""
        await lay_out(self.app)

    async def bar(self, words: str, *, shown: bool = True) -> None:
        """Check that these words are in the key bar, or are not."""
        await self.settle()
        line = screen(self.app)[-1]
        assert (words in line) is shown, line

    async def turn(self, steps: int = 0) -> None:
        """Run engine steps, carry over what came of them, and paint."""
        self._keys.advance(TURN_SECONDS)
        self.engine.advance(steps)
        self.deck.pump.turn(everything=True)
        await self._workers_done()
        await settle(self.app)

    async def _workers_done(self) -> None:
        while True:
            # A live pump reads the devices anew meanwhile, and so cancels the reading before.
            with suppress(WorkerCancelled):
                await self.app.workers.wait_for_complete()
                return

    async def press(self, *keys: str) -> None:
        await press(self.app, *keys)

    async def send(self, text: str) -> None:
        """Send `text` as one that was pasted and then sent with Enter."""
        self.deck.chat.prompt.area.load_text(text)
        await self.press("enter")

    async def finish(self) -> None:
        """Let every reply come to its end."""
        self.engine.finish_all()
        await self.turn()


@asynccontextmanager
async def staged(
    folder: Path,
    replies: Replies = echo,
    *,
    size: tuple[int, int] = (120, 40),
    ready: bool = True,
    live: bool = False,
    mqtt: bool = False,
    http: HttpSide | None = None,
    notices: bool = False,
    kind: type[Tui] = Tui,
    load: LoadRequest = SCRIPTED,
    config: EngineConfig = CONFIG,
    **settings: object,
) -> AsyncIterator[Stage]:
    """Open the application on the store in `folder`.

    Args:
        ready: there is a model.
        live: the pump runs by its own timer.
        mqtt: there is a gateway for MQTT.
        http: the gateway for HTTP.
        notices: what is said in passing is painted too.
        kind: of application.
        load: how the first model is loaded.
        config: the engine's.
    """
    engine = ScriptedEngine(replies, config=config, loaded=False)
    gateway = ScriptedGateway(engine) if mqtt else None
    store = Store(folder / "batchdeck.db")
    chosen = Settings.model_validate({"data_dir": folder, **settings})
    try:
        app = kind(engine, store, chosen, load, gateway, http=http)
        keys = VirtualClock(0.0)
        app.deck.clock = keys
        timer = nullcontext() if live else patch.object(Pump, "_come_again", Pump.turn)
        with timer:
            async with app.run_test(size=size, notifications=notices) as pilot:
                stage = Stage(app, engine, store, pilot, keys, gateway)
                await stage.settle()
                if ready:
                    engine.ready()
                await stage.turn()
                app.clear_notifications()
                yield stage
    finally:
        store.close()
