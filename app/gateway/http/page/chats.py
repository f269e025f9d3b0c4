"""PageChats: the chats of the store for the page, on the gateway's loop."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from app.conversations.chat_file import dump
from app.conversations.session import ChatSession
from app.gateway.faults import Fault
from app.gateway.http.batches.shelf import Shelf
from app.gateway.http.page.chat_state import ChatState, Following, bodies, read_state
from app.gateway.http.page.owners import GUEST, SCREEN, Owner
from app.gateway.http.service import Service
from app.gateway.sources import HTTP
from app.store.conversation import Conversation, Message
from app.store.query import QueryError, parse
from app.store.store import Store
from engine.api.client import Submission
from engine.api.sampling import SamplingParams
from engine.api.status import EngineStatus
from engine.api.stream import RequestStream

T = TypeVar("T")
Plain = dict[str, Any]

# Pages look for changes of other programs as often as this.
LOOK_SECONDS = 1.0
# A reply is sent at most this often. A large open block takes longer to make; then the pause is so
# many times as long.
PAUSE_SECONDS = 0.04
REST = 6
MAX_PAUSE_SECONDS = 2.0
MAX_LISTENERS = 128
MAX_OF_ONE = 32
# Chats that stay in memory without a listener or a reply.
KEPT = 64
# Deletions that can be undone here.
UNDONE = 1000
# Chats of browsers without a key are removed when they were not continued for so long.
GUEST_SECONDS = 30 * 24 * 3600.0
_FORGOTTEN_AT_ONCE = 16
MOST_FOUND = 1000


@dataclass(eq=False, slots=True)
class OpenChat:
    """A chat in memory.

    Attributes:
        session: it belongs to the shelf's thread.
        listeners: set whenever the chat has changed.
    """

    owner: Owner
    session: ChatSession
    is_busy: bool = False
    listeners: set[asyncio.Event] = field(default_factory=set)

    @property
    def is_idle(self) -> bool:
        return not (self.is_busy or self.listeners)


class PageChats:
    """Chats that pages read and write. Sessions and store are used on the shelf's thread; all
    methods are called on the loop."""

    def __init__(self, service: Service, shelf: Shelf, loop: asyncio.AbstractEventLoop) -> None:
        self._service = service
        self._shelf = shelf
        self._loop = loop
        self._open: OrderedDict[str, OpenChat] = OrderedDict()
        self._deleted: deque[tuple[str, Owner]] = deque(maxlen=UNDONE)
        self._replies: set[asyncio.Task[None]] = set()
        self._listeners: dict[asyncio.Event, Owner] = {}
        self._is_closed = False

    def holds(self, conversation_id: str) -> bool:
        """Whether a chat that is not the screen's is in memory; callable from any thread."""
        chat = self._open.get(conversation_id)
        return chat is not None and chat.owner.source == HTTP

    def close(self) -> None:
        """End the events of all pages, and store the replies so far."""
        self._is_closed = True
        for listener in self._listeners:
            listener.set()
        sessions = [chat.session for chat in self._open.values()]
        self._open.clear()

        def close(store: Store) -> None:
            for session in sessions:
                session.close()

        self._shelf.post(close)

    async def listed(self, owner: Owner, search: str = "") -> Plain:
        """The owner's chats, pinned ones first; or those that a search finds, best first.

        Raises:
            Fault: 400, it cannot be searched for; 503, the store cannot be read.
        """
        if not search:
            return await self._shelf.call(lambda store: self._all(store, owner))
        try:
            query = replace(parse(search), source=owner.source)
        except QueryError as error:
            raise Fault(400, str(error), "search") from None

        def find(store: Store) -> Plain:
            store.search.catch_up()
            found = [one for one in store.search.find(query, MOST_FOUND) if owner.has(one.chat)]
            return {
                "chats": [
                    {
                        "id": one.chat.id,
                        "title": one.chat.title,
                        "pinned": one.chat.pinned_at is not None,
                        "updated": one.chat.updated,
                        "model": one.model,
                        "busy": self._is_busy(one.chat.id),
                        "hit": None if one.best is None else one.best.text[:200],
                    }
                    for one in found
                ]
            }

        return await self._shelf.call(find)

    async def new(self, owner: Owner, system: str, sampling: Plain) -> str:
        """The id of a new chat; the store has it from its first message on.

        Raises:
            InvalidRequestError: a setting is wrong.
        """
        SamplingParams().override(sampling)
        conversation = Conversation(
            id=owner.new_id(),
            user=owner.user,
            source=owner.source,
            system=system,
            sampling=sampling,
            is_open=False,
        )
        if owner.is_guest:
            before = time.time() - GUEST_SECONDS
            self._shelf.post(lambda store: store.forget(HTTP, GUEST, before, _FORGOTTEN_AT_ONCE))
        session = await self._shelf.call(lambda store: self._begun(store, owner, conversation))
        self._put(owner, session)
        return conversation.id

    async def get(self, owner: Owner, chat_id: str) -> OpenChat:
        """A chat, read from the store if need be.

        Raises:
            Fault: 404, there is none; 503, it cannot be read.
        """
        chat = self._open.get(chat_id)
        if chat is None:
            session = await self._shelf.call(lambda store: self._read(store, owner, chat_id))
            chat = self._open.get(chat_id) or self._put(owner, session)
        if chat.owner != owner:
            raise _missing(chat_id)
        self._open.move_to_end(chat_id)
        return chat

    async def change(self, chat: OpenChat, call: Callable[[Store, ChatSession], T]) -> T:
        """Call a function with a chat's session on its thread, and show the result to all pages.

        Raises:
            Fault, InvalidRequestError: the call raised it.
        """

        def changed(store: Store) -> T:
            chat.session.read()
            chat.session.read_changes()
            try:
                return call(store, chat.session)
            finally:
                chat.is_busy = chat.session.is_busy

        try:
            return await self._shelf.call(changed)
        finally:
            self._wake(chat)

    async def bodies(self, chat: OpenChat, ids: frozenset[str]) -> Plain:
        """The contents of messages on view."""

        def find(store: Store) -> list[Message]:
            # A reply in progress comes by events.
            return [
                one
                for one in chat.session.messages
                if one.id in ids and (one.role != "assistant" or one.finish_reason is not None)
            ]

        messages = await self._shelf.call(find)
        return {"bodies": await asyncio.to_thread(bodies, messages)}

    async def stop(self, chat: OpenChat) -> None:
        """End the reply in progress, also one that the screen has requested."""

        def stop(store: Store, session: ChatSession) -> None:
            messages = session.messages
            if messages and messages[-1].finish_reason is None and messages[-1].request_id:
                self._service.client.abort(messages[-1].request_id)

        await self.change(chat, stop)

    async def delete(self, chat: OpenChat) -> None:
        """Delete a chat, ending its reply; `restore` undoes it."""

        def delete(store: Store, session: ChatSession) -> str:
            session.close()
            store.delete_conversation(session.conversation.id)
            return session.conversation.id

        chat_id = await self.change(chat, delete)
        self._open.pop(chat_id, None)
        self._deleted.append((chat_id, chat.owner))

    async def restore(self, owner: Owner, chat_id: str) -> None:
        """Undo the deletion of a chat.

        Raises:
            Fault: 404, it was not deleted here, or is gone for good.
        """
        if (chat_id, owner) not in self._deleted or not await self._shelf.call(
            lambda store: store.restore_conversation(chat_id)
        ):
            raise _missing(chat_id)
        self._deleted.remove((chat_id, owner))

    async def export(self, chat: OpenChat) -> str:
        """The chat with all of its branches, as a file that `tui import` reads."""

        def read(store: Store) -> str:
            conversation = chat.session.conversation
            return dump([(conversation, store.messages(conversation.id))])

        return await self._shelf.call(read)

    @contextmanager
    def place(self, owner: Owner) -> Iterator[asyncio.Event]:
        """Reserve a place for a page.

        Raises:
            Fault: 429 or 503, there is none.
        """
        if self._is_closed:
            raise Fault(503, "the server is shutting down", reason="draining")
        own = sum(one.asker == owner.asker for one in self._listeners.values())
        if own >= MAX_OF_ONE or len(self._listeners) >= MAX_LISTENERS:
            text = f"{len(self._listeners)} pages are open, {own} of them yours; at most"
            text += f" {MAX_LISTENERS} may be, and {MAX_OF_ONE} of one user"
            raise Fault(429, text, reason="too many pages", retry_after_ms=5000)
        listener = asyncio.Event()
        self._listeners[listener] = owner
        try:
            yield listener
        finally:
            del self._listeners[listener]

    async def events(
        self, owner: Owner, chat: OpenChat | None, listener: asyncio.Event
    ) -> AsyncGenerator[tuple[str, Plain], None]:
        """The owner's list of chats and a chat, as events that follow their changes."""
        following, listed = Following(), None
        if chat is not None:
            chat.listeners.add(listener)
        try:
            while not self._is_closed:
                listener.clear()
                began = time.monotonic()
                if (found := await self.listed(owner)) != listed:
                    listed = found
                    yield "chats", found
                if chat is not None:
                    state = await self._shelf.call(_reader(chat))
                    for event in await asyncio.to_thread(_made, following, state):
                        yield event
                rest = REST * (time.monotonic() - began)
                await asyncio.sleep(min(max(PAUSE_SECONDS, rest), MAX_PAUSE_SECONDS))
                try:
                    async with asyncio.timeout(LOOK_SECONDS):
                        await listener.wait()
                except TimeoutError:
                    pass
        finally:
            if chat is not None:
                chat.listeners.discard(listener)

    # On the shelf's thread.

    def _all(self, store: Store, owner: Owner) -> Plain:
        return {
            "chats": [
                {
                    "id": one.id,
                    "title": one.title,
                    "pinned": one.is_pinned,
                    "updated": one.updated,
                    "model": one.model,
                    "busy": self._is_busy(one.id),
                }
                for one in store.summaries.all()
                if (one.user, one.source) == (owner.user, owner.source)
            ]
        }

    def _is_busy(self, chat_id: str) -> bool:
        chat = self._open.get(chat_id)
        return chat is not None and chat.is_busy

    def _read(self, store: Store, owner: Owner, chat_id: str) -> ChatSession:
        conversation = store.conversation(chat_id)
        if conversation is None or not owner.has(conversation):
            raise _missing(chat_id)
        return self._session(store, conversation)

    def _begun(self, store: Store, owner: Owner, conversation: Conversation) -> ChatSession:
        """The session of a new chat, with the preset for new chats if it is the screen's."""
        if owner.source == SCREEN and not conversation.system:
            name = store.presets.default()
            for preset in store.presets.all():
                if preset.name == name:
                    stated = {**preset.sampling, **conversation.sampling}
                    conversation.system, conversation.sampling = preset.system, stated
        return self._session(store, conversation)

    def _session(self, store: Store, conversation: Conversation) -> ChatSession:
        engine = _Engine(self, conversation.id)
        return ChatSession(engine, conversation, store, self._service.sampling)

    # On the loop.

    def _put(self, owner: Owner, session: ChatSession) -> OpenChat:
        chat = self._open[session.conversation.id] = OpenChat(owner, session)
        idle = [key for key, one in self._open.items() if one.is_idle and one is not chat]
        for key in idle[:-KEPT]:
            del self._open[key]
        return chat

    def _begin(self, chat_id: str, submission: Submission, stream: RequestStream) -> None:
        """Submit a request of a chat; called from any thread."""

        def begin() -> None:
            task = self._loop.create_task(self._relay(chat_id, submission, stream))
            self._replies.add(task)
            task.add_done_callback(self._replies.discard)

        self._loop.call_soon_threadsafe(begin)

    async def _relay(self, chat_id: str, submission: Submission, stream: RequestStream) -> None:
        """Run a request as those of other clients, and pass its output to the chat's session."""
        chat = self._open[chat_id]
        service, asker = self._service, chat.owner.asker
        submission = replace(
            submission,
            priority=service.quotas.priority(asker, 0),
            cache_salt=service.salt(asker, None),
        )
        with service.exchanges.run(asker, (submission,), "page") as exchange:
            source = exchange.streams[0]
            while not exchange.has_ended:
                for _, delta in await exchange.news():
                    stream.num_prompt_tokens = source.num_prompt_tokens
                    stream.thought = source.thought
                    stream.put(delta)
                await self.change(chat, lambda store, session: session.poll())
                await asyncio.sleep(PAUSE_SECONDS)

    def _wake(self, chat: OpenChat) -> None:
        for listener in chat.listeners:
            listener.set()


class _Engine:
    """The engine as the session of one chat sees it: requests go through the gateway, so that
    quotas, counts and draining hold for them."""

    def __init__(self, chats: PageChats, chat_id: str) -> None:
        self._chats = chats
        self._chat_id = chat_id

    def submit(
        self, submission: Submission, wake: Callable[[], None] | None = None
    ) -> RequestStream:
        stream = RequestStream(submission.request_id, wake)
        self._chats._begin(self._chat_id, submission, stream)
        return stream

    def abort(self, request_id: str) -> None:
        self._chats._service.client.abort(request_id)

    def status(self) -> EngineStatus:
        return self._chats._service.client.status()


def _reader(chat: OpenChat) -> Callable[[Store], ChatState]:
    return lambda store: read_state(chat.session)


def _made(following: Following, state: ChatState) -> list[tuple[str, Plain]]:
    return list(following.events(state))


def _missing(chat_id: str) -> Fault:
    return Fault(404, f"there is no chat {chat_id[:64]!r}", reason="no such chat")
