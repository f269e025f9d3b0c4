"""ScriptedHttp: the screen's side of the HTTP gateway, saying what a test has it say."""

from __future__ import annotations

from dataclasses import replace

from app.gateway.http.view import HttpView
from app.gateway.view import Transcript
from engine.api.telemetry import Distribution

VIEW = HttpView(
    time=100.0,
    since=40.0,
    url="http://127.0.0.1:8000",
    draining=False,
    connections=0,
    running=0,
    waiting=0,
    accepted=0,
    finished=0,
    rejected=(),
    first_token=Distribution.of(()),
    bad=(),
    users=(),
    used={},
)


class ScriptedHttp:
    """A gateway without a server, and without chats.

    Attributes:
        shown: what `view` gives.
        failure: as the gateway's.
    """

    def __init__(self) -> None:
        self.shown = VIEW
        self.failure = ""

    def view(self) -> HttpView:
        return self.shown

    def transcript(self, request_id: str) -> Transcript | None:
        return None

    def holds(self, conversation_id: str) -> bool:
        return False

    # What the test says.

    def show(self, **changes: object) -> None:
        """Change what `view` gives."""
        self.shown = replace(self.shown, **changes)  # type: ignore[arg-type]  # real fields
