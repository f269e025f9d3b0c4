"""stored: a store with many chats, as one has it after a year."""

from __future__ import annotations

from pathlib import Path

from app.store.conversation import Conversation, Message
from app.store.store import Store
from engine.api.lifecycle import FinishReason

# Begins the last message of the last chat, and stands nowhere else.
LAST_WORD = "Finally:"
_REPLY = (
    "A reply of some length, with **bold** words, a list and a little code.\n\n"
    "- one thing\n- another thing\n\n```python\nx = {}\n```\n"
)


def store_chats(path: Path, chats: int, messages: int) -> None:
    """Write so many chats, all of them open, and so many messages, the same number in each."""
    store = Store(path)
    with store.transaction():
        for number in range(chats):
            moment = 1_750_000_000.0 + number * 3600
            chat = Conversation(title=f"Chat {number}", created=moment, updated=moment)
            chat.number = number + 1
            store.save_conversation(chat)
            for message in _messages(chat.id, number, messages // chats):
                store.save_message(message)
                chat.leaf = message.id
            if number == chats - 1:
                last = _message(chat.id, chat.leaf, messages // chats + 1, LAST_WORD)
                store.save_message(last)
                chat.leaf = last.id
            store.save_conversation(chat)
    store.close()


def _messages(chat: str, number: int, count: int) -> list[Message]:
    found: list[Message] = []
    for place in range(count):
        text = _REPLY.format(number) if place % 2 else f"Question {place} of chat {number}?"
        found.append(_message(chat, found[-1].id if found else None, place, text))
    return found


def _message(chat: str, parent: str | None, place: int, text: str) -> Message:
    return Message(
        conversation_id=chat,
        parent_id=parent,
        role="assistant" if place % 2 else "user",
        content=text,
        finish_reason=FinishReason.STOP if place % 2 else None,
    )
