"""Composer: the draft of a message, and how much of the context it will take."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from app.screens.chats.draft_meter import DraftMeter, Length
from app.screens.chats.open_session import OpenSession, as_written
from app.screens.chats.sessions import SessionList
from app.screens.feeds.engine_watch import EngineWatch
from app.store.conversation import Attachment, Message
from app.store.database import StoreError
from app.store.drafts import Draft
from app.store.store import Store
from engine.api.lifecycle import FinishReason
from engine.api.snapshot import RequestView
from widgets.chat.prompt import Prompt
from widgets.figures import count, counted, size

log = logging.getLogger(__name__)

# The token count of a draft with at least this many characters is always shown beside the tokens in
# use; that of a shorter draft only near the end of the context.
_LONG = 200
_NEAR = 0.9


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether a message fits into the context.

    Attributes:
        is_known: False while its tokens are being counted.
        refusal: why it does not fit, and the remedy; empty if it does.
    """

    is_known: bool = True
    refusal: str = ""


class Composer:
    """Holds the draft of the chat on view, with its attachments.

    Attributes:
        session: the chat on view; None before the first one is shown.
        attachments: those of the message.
        editing: the id of the edited message; None if this is a new one.
        aside: the draft from before that message was edited; None if there was none.
        new_key: the key that opens a new chat, as it is shown to the user.
    """

    def __init__(self, sessions: SessionList, engine: EngineWatch, prompt: Prompt) -> None:
        self.session: OpenSession | None = None
        self.attachments: tuple[Attachment, ...] = ()
        self.editing: str | None = None
        self.aside: Draft | None = None
        self.new_key = ""
        self._sessions = sessions
        self._engine = engine
        self._prompt = prompt
        self._meter = DraftMeter(sessions.client)

    @property
    def draft(self) -> Draft:
        return Draft(self._prompt.text, self.attachments, self.editing, self.aside)

    def save_to_session(self) -> None:
        """Store the current draft in the session on view."""
        if self.session is not None:
            self.session.draft = self.draft

    def show(self, session: OpenSession) -> None:
        """Show another chat with its draft."""
        self.save_to_session()
        self.session = session
        self.load(draft_of(session, self._sessions.store))
        self._prompt.refuse(session.refusal)

    def load(self, draft: Draft) -> None:
        """Replace the draft."""
        assert self.session is not None
        self.attachments, self.editing, self.aside = draft.attachments, draft.edited, draft.aside
        self._prompt.load(draft.text, self.session.history)

    def attach(self, attachment: Attachment) -> None:
        self.attachments = (*self.attachments, attachment)

    def attach_paste(self, text: str) -> None:
        """Attach a pasted text, under a name that no other attachment has."""
        names = {attachment.name for attachment in self.attachments}
        number = next(n for n in range(1, len(names) + 2) if f"paste {n}" not in names)
        self.attach(Attachment(f"paste {number}", text))

    def drop(self, place: int) -> None:
        """Remove an attachment; -1 is the last one."""
        files = list(self.attachments)
        if files:
            del files[place]
        self.attachments = tuple(files)

    def start_edit(self, message: Message) -> None:
        """Edit a message of the user. The draft is set aside until the edit ends."""
        aside = (self.draft or None) if self.editing is None else self.aside
        self.load(Draft(as_written(message.content), message.attachments, message.id, aside))

    def go_back(self) -> None:
        """Stop editing, and go back to the draft that was set aside."""
        self.load(self.aside or Draft())

    def update(self) -> bool:
        """Update the shown attachments and context; returns whether all tokens are counted."""
        assert self.session is not None
        text = self._prompt.text
        length = self._length(text)
        used, limit = self._used(), self._limit()
        self._prompt.show_attachments([self._label(one) for one in self.attachments])
        shows = self.attachments or len(text) >= _LONG
        shows = shows or bool(limit and text and used + length.tokens >= _NEAR * limit)
        ahead = f"{'' if length.is_exact else '~'}{count(length.tokens)}" if shows else ""
        self._prompt.show_context(used, limit, ahead, used + length.tokens if shows else used)
        return length.is_settled

    def is_full(self, session: OpenSession) -> bool:
        """Whether a chat has taken up all of the context."""
        limit = self._limit()
        return limit is not None and context_used(session, self._engine.views) >= limit

    def fit(self) -> Fit:
        """Whether the message fits into the context. Its tokens are counted if an estimate cannot
        tell."""
        used, limit, text = self._used(), self._limit(), self._prompt.text
        if limit is None or used + self._length(text).most < limit:
            return Fit()
        length = self._length(text, exact=True)
        if not length.is_settled:
            return Fit(is_known=False)
        if not length.is_exact or used + length.tokens < limit:
            return Fit()
        ways = ["shorten it"]
        if self.attachments:
            ways.append("take an attachment away (Backspace in an empty prompt)")
        if used and length.tokens < limit:
            ways.append(f"begin a new chat ({self.new_key})")
        free = f"the context holds {count(limit)}"
        if used:
            free += f", and {count(used)} of them are taken"
        way = " or ".join((", ".join(ways[:-1]), ways[-1])) if len(ways) > 1 else ways[0]
        return Fit(refusal=f"This message is {counted(length.tokens, 'token')}; {free}: {way}.")

    def _length(self, text: str, *, exact: bool = False) -> Length:
        model = self._engine.card.name if self._engine.card is not None else ""
        return self._meter.measure(model, text, self.attachments, exact=exact)

    def _limit(self) -> int | None:
        snapshot = self._engine.snapshot
        if snapshot is None:
            return None
        return min(snapshot.config.max_model_len, snapshot.config.num_slots)

    def _used(self) -> int:
        assert self.session is not None
        return context_used(self.session, self._engine.views, self.editing)

    def _label(self, attachment: Attachment) -> str:
        tokens, is_exact = self._meter.tokens_of(attachment)
        about = "" if is_exact else "~"
        bytes_ = size(len(attachment.text.encode(errors="surrogatepass")))
        return f"{attachment.name} · {bytes_} · {about}{counted(tokens, 'token')}"


def context_used(
    session: OpenSession, views: Mapping[str, RequestView], editing: str | None = None
) -> int:
    """The number of tokens in a chat so far, including those of a running reply.

    Args:
        editing: the id of a message; only messages before it are counted.
    """
    messages = session.chat.messages
    if editing is not None:
        ids = [message.id for message in messages]
        messages = messages[: ids.index(editing)] if editing in ids else messages
    elif known := session.chat.num_prompt_tokens:
        return known + session.chat.num_output_tokens
    for message in reversed(messages):
        if message.finish_reason is FinishReason.ERROR and not message.content:
            # Its prompt does not count: one that is too long, say, was refused.
            continue
        view = views.get(message.request_id or "")
        # Until the next snapshot, a request that has ended may be listed as it was before.
        if view is not None and view.finish_reason is not None:
            return view.prompt_tokens + view.output_tokens
        if message.usage is not None:
            return message.usage.prompt_tokens + message.usage.completion_tokens
    return 0


def draft_of(session: OpenSession, store: Store) -> Draft:
    """The draft of a chat; it is read from the store if the chat was not on view yet."""
    if session.draft is None:
        try:
            session.draft = store.drafts.of(session.key) if session.is_own else Draft()
        except StoreError as error:
            log.error("%s", error)
            session.draft = Draft()
        ids = {message.id for message in session.chat.messages}
        if session.draft.edited not in ids:
            session.draft = replace(session.draft, edited=None, aside=None)
        session.kept = session.draft
    return session.draft


def store_draft(session: OpenSession, draft: Draft, store: Store) -> bool:
    """Store the draft of a chat, and the chat itself if it has no messages yet.

    Returns:
        whether the draft differed from the stored one.

    Raises:
        StoreError: it could not be stored.
    """
    if not session.is_own or draft == session.kept:
        return False
    is_new = session.is_empty
    with store.transaction():
        if is_new and draft:
            store.save_conversation(session.chat.conversation)
        store.drafts.save(session.key, draft, session.kept)
        if is_new and not draft:
            store.delete_conversation(session.key)
            store.free_id(session.key)
    session.kept = draft
    return True
