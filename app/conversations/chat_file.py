"""Chat file: chats with all their branches as JSON, for export and import."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from app.store.conversation import Conversation, Message, new_id
from app.store.database import PAUSE_SECONDS, StoreError
from app.store.store import Store
from engine.api.lifecycle import FinishReason

FORMAT = "batchdeck chats"
VERSION = 1

_PORTION = 200  # messages that are imported before others may write again
_MESSAGES = TypeAdapter(list[Message])


class ChatFileError(ValueError):
    """A text is no chat file; the message says why."""


# Seconds since the epoch, until the end of the year 9999, the last valid date.
_Moment = Annotated[float, Field(ge=0, le=253_402_300_799)]


class _Message(BaseModel):
    """The fields of a message that order it; the others are `Message`'s."""

    model_config = ConfigDict(extra="ignore")

    id: str
    parent_id: str | None
    role: Literal["user", "assistant", "tool"]
    created: _Moment = 0.0


class _Chat(BaseModel):
    """One chat of the file. Unknown fields are dropped."""

    model_config = ConfigDict(extra="ignore")

    title: str
    system: str = ""
    sampling: dict[str, Any] = {}
    created: _Moment
    updated: _Moment
    leaf: str | None
    is_named: bool = False
    is_archived: bool = False
    pinned_at: _Moment | None = None
    messages: list[dict[str, Any]]


def dump(chats: Iterable[tuple[Conversation, list[Message]]]) -> str:
    """Chats with all of their messages, as JSON."""
    listed = [
        {
            "title": chat.title,
            "system": chat.system,
            "sampling": dict(chat.sampling),
            "user": chat.user,
            "source": chat.source,
            "created": chat.created,
            "updated": chat.updated,
            "leaf": chat.leaf,
            "is_named": chat.is_named,
            "is_archived": chat.is_archived,
            "pinned_at": chat.pinned_at,
            "messages": _dumped(messages),
        }
        for chat, messages in chats
    ]
    head = {"format": FORMAT, "version": VERSION, "chats": listed}
    return json.dumps(head, ensure_ascii=False, indent=1) + "\n"


def load(text: str) -> tuple[list[tuple[Conversation, list[Message]]], list[str]]:
    """The chats of a file, with new ids, owned by the user of the screen; and a sentence on each
    invalid one, which is left out.

    Raises:
        ChatFileError: it is no such file.
    """
    chats, wrong = [], []
    for place, raw in enumerate(_listed(text)):
        try:
            chats.append(_read(raw))
        except ValueError as error:
            wrong.append(
                f"chats.{place} ({raw.get('title', '')!r}) is left out: {_describe(error)}"
            )
    return chats, wrong


def decode(data: bytes) -> str:
    """Decode a file. Raises ChatFileError if it is not text."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        why = f"it is not UTF-8 text (byte {error.start:,})"
        raise ChatFileError(f"it is not a file of chats: {why}") from None


def import_chats(store: Store, chats: Iterable[tuple[Conversation, list[Message]]]) -> None:
    """Import chats into the store, all or none.

    Others may write in between. Until all of them are stored they are marked as deleted: they are
    invisible, and the store drops them if the program ends meanwhile.

    Raises:
        StoreError: it cannot be written.
    """
    taken: list[str] = []
    try:
        for portion in _portions(chats):
            if taken:
                time.sleep(PAUSE_SECONDS)
            with store.transaction():
                for chat, messages in portion:
                    store.save_conversation(chat)
                    for message in messages:
                        store.save_message(message)
                    store.delete_conversation(chat.id)
            taken += [chat.id for chat, _ in portion]
        with store.transaction():
            for chat_id in taken:
                store.restore_conversation(chat_id)
    except StoreError:
        with suppress(StoreError):
            for chat_id in taken:
                store.free_id(chat_id)
        raise


def _portions(
    chats: Iterable[tuple[Conversation, list[Message]]],
) -> Iterator[list[tuple[Conversation, list[Message]]]]:
    """Chats to write at once: enough for `_PORTION` messages, or one."""
    portion: list[tuple[Conversation, list[Message]]] = []
    for one in chats:
        portion.append(one)
        if sum(len(messages) for _, messages in portion) >= _PORTION:
            yield portion
            portion = []
    if portion:
        yield portion


def _listed(text: str) -> list[dict[str, Any]]:
    """The chats of a file, not validated yet; raises ChatFileError."""
    why = ""
    try:
        head = json.loads(text)
    except json.JSONDecodeError as error:
        why = f"it is not JSON (line {error.lineno}, column {error.colno})"
    except (ValueError, RecursionError):
        why = "it is not readable JSON"
    else:
        if not isinstance(head, dict) or head.get("format") != FORMAT:
            why = "it is not JSON written by `tui export`"
        elif head.get("version") != VERSION:
            why = f"its version is {_short(head.get('version'))}; it must be {VERSION}"
        elif not isinstance(head.get("chats"), list):
            why = "it has no list of chats"
        elif not all(isinstance(chat, dict) for chat in head["chats"]):
            why = "its list has no chats"
    if why:
        raise ChatFileError(f"it is not a file of chats: {why}")
    listed: list[dict[str, Any]] = head["chats"]
    return listed


def _read(raw: dict[str, Any]) -> tuple[Conversation, list[Message]]:
    try:
        json.dumps(raw, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("a text has half a surrogate pair; it must be valid Unicode") from None
    found = _Chat.model_validate(raw)
    chat = Conversation(
        title=found.title,
        system=found.system,
        sampling=found.sampling,
        created=found.created,
        updated=found.updated,
        is_named=found.is_named,
        is_archived=found.is_archived,
        pinned_at=found.pinned_at,
        is_open=False,
    )
    ids: dict[str, str] = {}
    listed = []
    for place, one in enumerate(found.messages):
        where = f"messages.{place}"
        try:
            head = _Message.model_validate(one)
        except ValidationError as error:
            raise ValueError(f"{where}.{_describe(error)}") from None
        if head.id in ids:
            raise ValueError(f"{where}.id is {head.id!r}, as another message's; it must be its own")
        if head.parent_id is not None and head.parent_id not in ids:
            text = f"{where}.parent_id is {head.parent_id!r}"
            raise ValueError(f"{text}; it must be the id of a message before it, or null")
        ids[head.id] = new_id()
        parent_id = ids[head.parent_id] if head.parent_id is not None else None
        placed = {"id": ids[head.id], "parent_id": parent_id, "conversation_id": chat.id}
        listed.append({**one, **placed, "request_id": None})
    if found.leaf is not None and found.leaf not in ids:
        raise ValueError(f"leaf is {found.leaf!r}; it must be the id of a message, or null")
    chat.leaf = ids[found.leaf] if found.leaf is not None else None
    try:
        messages = _MESSAGES.validate_python(listed)
    except ValidationError as error:
        raise ValueError(f"messages.{_describe(error)}") from None
    for message in messages:
        if message.role == "assistant" and message.finish_reason is None:
            message.finish_reason = FinishReason.ABORT  # it was unfinished when it was exported
    return chat, messages


def _dumped(messages: list[Message]) -> list[dict[str, Any]]:
    dumped: list[dict[str, Any]] = _MESSAGES.dump_python(messages, mode="json")
    for message in dumped:
        del message["conversation_id"], message["request_id"]
    return dumped


def _describe(error: Exception) -> str:
    """The first fault, with its field, its value and what is allowed."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    field = ".".join(map(str, first["loc"]))
    if first["type"] == "missing":
        return f"{field} is missing"
    rule = first["msg"].removeprefix("Value error, ").partition(" or instance of")[0]
    rule = rule.replace("Input should", "it should")
    return f"{field} is {_short(first['input'])}; {rule}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
