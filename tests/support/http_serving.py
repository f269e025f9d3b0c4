"""HttpServing: an HTTP gateway over a scripted engine, whose time passes when told to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
import uvicorn.server
from pydantic.json_schema import models_json_schema

from app.gateway.http import gateway, openapi
from app.gateway.http.gateway import HttpGateway
from app.gateway.http.settings import HttpSettings
from app.gateway.http.view import HttpView
from app.store.conversation import Conversation, Message
from app.store.store import Store
from engine.api.lifecycle import FinishReason
from tests.support.driving import TIMEOUT, Driving
from tests.support.scripted_engine import ScriptedEngine


class HttpServing(Driving):
    """
    Attributes:
        http: a client that knows where the gateway is.
        store_file: where it keeps files and batches.
    """

    def __init__(
        self,
        store_file: Path,
        engine: ScriptedEngine | None,
        sampling: Mapping[str, object] | None = None,
        **settings: Any,
    ) -> None:
        self.engine = engine or ScriptedEngine()
        self.store_file = store_file
        values = {"listen": "127.0.0.1:0", "drain_seconds": 0.0, **settings}
        self.gateway = HttpGateway(
            self.engine, HttpSettings(**values), store_file, sampling=sampling
        )
        self.gateway.start()
        self.http = httpx2.Client(base_url=self.gateway.url, timeout=TIMEOUT, trust_env=False)

    @property
    def url(self) -> str:
        return self.gateway.url

    def ask(self, text: str = "hello", **fields: Any) -> httpx2.Response:
        """The answer to a chat of one message, while the engine steps."""
        messages = [{"role": "user", "content": text}]
        with self.running():
            return self.http.post("/v1/chat/completions", json={"messages": messages, **fields})

    def forget(self) -> None:
        """Let the engine have been asked nothing."""
        for asked in (self.engine.submissions, self.engine.prompts, self.engine.tokenized):
            asked.clear()

    def check_idle(self) -> None:
        """Nothing runs or waits, and every block is free or cached."""

        def is_idle() -> bool:
            self.engine.advance()
            snapshot = self.engine.snapshot()
            assert snapshot is not None
            busy = snapshot.num_running, snapshot.num_waiting, snapshot.blocks.used
            return len(self.gateway._exchanges) == 0 and busy == (0, 0, 0)

        self.until(is_idle)
        assert self.gateway._exchanges.num_waiting == self.gateway._exchanges.num_replies == 0

    def look(self) -> HttpView:
        """The gateway's next view: the last one may have been made before its latest answer."""
        before = self.gateway.view()
        self.until(lambda: self.gateway.view() is not before)
        return self.gateway.view()

    def told(self) -> object:
        return self.gateway.view()

    def stop(self, drain_seconds: float | None = None) -> None:
        self.http.close()
        self.gateway.stop(drain_seconds)


async def _sleep(seconds: float) -> None:
    await asyncio.sleep(min(seconds, 0.005))


_schemas = cache(models_json_schema)


@contextmanager
def http_serving(
    engine: ScriptedEngine | None = None, store_file: Path | None = None, **settings: Any
) -> Iterator[HttpServing]:
    """
    Args:
        store_file: None is one that is gone afterwards.
    """
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        # Tests wait for it. uvicorn's server sleeps 0.1 s between two looks at whether it must end,
        # and another 0.1 s when it does; the schemas of the requests take 60 ms.
        patch.setattr(gateway, "POLL_SECONDS", 0.05)
        patch.setattr(gateway, "VIEW_SECONDS", 0.02)
        hurried = SimpleNamespace(**{**vars(asyncio), "sleep": _sleep})
        patch.setattr(uvicorn.server, "asyncio", hurried)
        patch.setattr(
            openapi,
            "models_json_schema",
            lambda kinds, **given: _schemas(tuple(kinds), **given),
        )
        one = HttpServing(store_file or Path(folder) / "store.db", engine, **settings)
        try:
            yield one
        finally:
            one.stop(0.0)


def store_chat(serving: HttpServing, replies: list[str], title: str = "stored") -> None:
    """Put a chat of questions and these replies into the store."""
    chat = Conversation(title=title, is_named=True, is_open=False)
    with closing(Store(serving.store_file)) as store, store.transaction():
        store.save_conversation(chat)
        for reply in replies:
            for role, text in (("user", "?"), ("assistant", reply)):
                message = Message(
                    conversation_id=chat.id, parent_id=chat.leaf, role=role, content=text
                )
                if role == "assistant":
                    message.finish_reason = FinishReason.STOP
                store.save_message(message)
                chat.leaf = message.id
        store.save_conversation(chat)
