"""chat_routes: the chats of the page, as JSON and as events."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from typing import Any, ClassVar, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Send

from app.conversations.session import ChatSession
from app.gateway.faults import Fault
from app.gateway.http.body import read_body, until_gone
from app.gateway.http.endpoint import Endpoint
from app.gateway.http.page.chats import PageChats
from app.gateway.http.page.frame import encoded
from app.gateway.http.page.live import EVENT_HEADERS, encoded_event
from app.gateway.http.page.owners import Owners
from app.gateway.http.protocol.payload import Payload, T, read
from app.gateway.http.service import Service
from app.store.store import Store
from engine.api.errors import InvalidRequestError
from engine.api.sampling import SamplingParams

MAX_TITLE = 200
MAX_IDS = 64


class NewChat(Payload):
    """The settings of a new chat."""

    ALLOWED: ClassVar[dict[str, str]] = {"system": "a text", "sampling": "an object"}

    system: str = ""
    sampling: dict[str, Any] = Field(default_factory=dict)


class ChatChange(Payload):
    """Labels and settings of a chat; those that are left out stay."""

    ALLOWED: ClassVar[dict[str, str]] = {
        "title": f"a text of 1 to {MAX_TITLE} characters",
        "pinned": "true or false",
        "system": "a text",
        "sampling": "an object",
    }

    title: str | None = Field(default=None, min_length=1, max_length=MAX_TITLE)
    pinned: bool | None = None
    system: str | None = None
    sampling: dict[str, Any] | None = None


class Turn(Payload):
    """A request for a reply.

    Attributes:
        text: the message of `send` and `edit`.
        message: the one that `edit` replaces, or the reply that `regenerate` replaces.
    """

    ALLOWED: ClassVar[dict[str, str]] = {
        "action": "send, edit, regenerate or resume",
        "text": "a text",
        "message": "the id of a message",
    }

    action: Literal["send", "edit", "regenerate", "resume"]
    text: str = ""
    message: str = ""


class Branch(Payload):
    """A switch to the branch `steps` places after a message's."""

    ALLOWED: ClassVar[dict[str, str]] = {"message": "the id of a message", "steps": "a number"}

    message: str
    steps: int


class ChatEndpoint(Endpoint):
    """An endpoint of an owner's chats."""

    def __init__(self, service: Service, owners: Owners, chats: PageChats) -> None:
        super().__init__(service)
        self.owners = owners
        self.chats = chats

    async def read(self, request: Request, kind: type[T]) -> T:
        """The body of a request.

        Raises:
            Fault: it is refused.
            ClientDisconnect: the client has gone.
        """
        return read(kind, await read_body(request, self.service.admission.check_size))


class Chats(ChatEndpoint):
    """The list of chats, or a new one."""

    async def answer(self, request: Request, send: Send) -> Response:
        owner = self.owners.owner(request)
        if request.method == "POST":
            asked = await self.read(request, NewChat)
            return _answer({"id": await self.chats.new(owner, asked.system, asked.sampling)})
        search = request.query_params.get("search", "").strip()
        return _answer(await self.chats.listed(owner, search))


class OneChat(ChatEndpoint):
    """Labels and settings of a chat, and its deletion."""

    async def answer(self, request: Request, send: Send) -> Response:
        owner = self.owners.owner(request)
        chat = await self.chats.get(owner, request.path_params["name"])
        if request.method == "DELETE":
            await self.chats.delete(chat)
            return _answer({})
        asked = await self.read(request, ChatChange)
        await self.chats.change(chat, lambda store, session: _change(store, session, asked))
        return _answer({})


class Restore(ChatEndpoint):
    """Undoes the deletion of a chat."""

    async def answer(self, request: Request, send: Send) -> Response:
        await self.chats.restore(self.owners.owner(request), request.path_params["name"])
        return _answer({})


class Turns(ChatEndpoint):
    """Requests a reply, which comes by the events of the chat."""

    async def answer(self, request: Request, send: Send) -> Response:
        owner = self.owners.owner(request)
        asked = await self.read(request, Turn)
        chat = await self.chats.get(owner, request.path_params["name"])
        self.service.admission.check_room(owner.asker)
        await self.chats.change(chat, lambda store, session: _turn(session, asked))
        return _answer({})


class Stop(ChatEndpoint):
    """Ends the reply in progress."""

    async def answer(self, request: Request, send: Send) -> Response:
        owner = self.owners.owner(request)
        await self.chats.stop(await self.chats.get(owner, request.path_params["name"]))
        return _answer({})


class Branches(ChatEndpoint):
    """Switches to another branch."""

    async def answer(self, request: Request, send: Send) -> Response:
        owner = self.owners.owner(request)
        asked = await self.read(request, Branch)
        chat = await self.chats.get(owner, request.path_params["name"])

        def switch(store: Store, session: ChatSession) -> None:
            _check_message(session, asked.message)
            session.turn(asked.message, asked.steps)

        await self.chats.change(chat, switch)
        return _answer({})


class Bodies(ChatEndpoint):
    """The contents of messages."""

    async def answer(self, request: Request, send: Send) -> Response:
        owner = self.owners.owner(request)
        chat = await self.chats.get(owner, request.path_params["name"])
        ids = request.query_params.get("ids", "").split(",")
        if len(ids) > MAX_IDS:
            raise Fault(400, f"ids are {len(ids)}; at most {MAX_IDS} are allowed", "ids")
        return _answer(await self.chats.bodies(chat, frozenset(ids)))


class Export(ChatEndpoint):
    """A chat as a file that `tui import` reads."""

    async def answer(self, request: Request, send: Send) -> Response:
        owner = self.owners.owner(request)
        chat = await self.chats.get(owner, request.path_params["name"])
        return Response(await self.chats.export(chat), media_type="application/json")


class ChatEvents(ChatEndpoint):
    """The list of chats and one of them, as a stream of events."""

    async def answer(self, request: Request, send: Send) -> Response | None:
        owner = self.owners.owner(request)
        name = request.query_params.get("chat", "")
        chat = await self.chats.get(owner, name) if name else None
        with self.chats.place(owner) as listener:
            headers = [(name.encode(), value.encode()) for name, value in EVENT_HEADERS.items()]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            gone = asyncio.create_task(until_gone(request))
            gone.add_done_callback(lambda _: listener.set())
            try:
                async with aclosing(self.chats.events(owner, chat, listener)) as events:
                    async for kind, data in events:
                        if gone.done():
                            return None
                        await send(encoded_event(kind.encode(), encoded(data)))
            finally:
                gone.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return None


def chat_routes(service: Service, owners: Owners, chats: PageChats) -> list[Route]:
    def route(path: str, kind: type[ChatEndpoint], *methods: str) -> Route:
        return Route(path, kind(service, owners, chats), methods=list(methods))

    return [
        route("/chats", Chats, "GET", "POST"),
        route("/chats/events", ChatEvents, "GET"),
        route("/chats/{name}", OneChat, "PATCH", "DELETE"),
        route("/chats/{name}/restore", Restore, "POST"),
        route("/chats/{name}/turns", Turns, "POST"),
        route("/chats/{name}/stop", Stop, "POST"),
        route("/chats/{name}/branch", Branches, "POST"),
        route("/chats/{name}/messages", Bodies, "GET"),
        route("/chats/{name}/export", Export, "GET"),
    ]


def _answer(data: object) -> Response:
    headers = {"cache-control": "no-store"}
    return Response(encoded(data), headers=headers, media_type="application/json")


def _check_message(session: ChatSession, message_id: str) -> None:
    if all(message.id != message_id for message in session.messages):
        text = f"message is {message_id[:64]!r}; it must be one of the branch on view"
        raise InvalidRequestError(text, "message")


def _turn(session: ChatSession, asked: Turn) -> None:
    if asked.message:
        _check_message(session, asked.message)
    match asked.action:
        case "send":
            session.send(asked.text)
        case "edit":
            session.edit(asked.message, asked.text)
        case "regenerate":
            session.regenerate(asked.message or None)
        case "resume":
            session.resume()


def _change(store: Store, session: ChatSession, asked: ChatChange) -> None:
    conversation = session.conversation
    labels = []
    if asked.sampling is not None:
        SamplingParams().override(asked.sampling)
        conversation.sampling = asked.sampling
    if asked.system is not None:
        conversation.system = asked.system
    if asked.title is not None:
        conversation.title, conversation.is_named = " ".join(asked.title.split()), True
        labels += ["title", "is_named"]
    if asked.pinned is not None:
        conversation.pinned_at = time.time() if asked.pinned else None
        labels.append("pinned_at")
    if session.is_empty:
        return  # The store has it from its first message on.
    if labels:
        store.save_label(conversation, *labels)
    store.save_settings(conversation)
