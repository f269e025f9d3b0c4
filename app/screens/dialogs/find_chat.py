"""FindChat and FindSent: dialogs that find chats and sent messages by the words in them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, Label, OptionList, Static
from textual.widgets.option_list import Option

from app.screens.bound import key_of
from app.screens.chats.keeper import ChatKeeper, Done, HeldError
from app.screens.chats.open_session import title_of
from app.screens.dialogs.dialog import AskText, Entry, Finder
from app.store.database import StoreError
from app.store.query import Query, QueryError, parse
from app.store.search import MOST, Found, Hit, Search
from widgets.chat.passage import folded, pattern
from widgets.figures import count, counted
from widgets.glyphs import UNICODE
from widgets.line import shorten

_SNIPPET = 90  # characters
_PREVIEW = 600
_BESIDE = 7  # cells: an excerpt's indent, the padding of an option, the scrollbar
_HINT = "words, “a phrase”, model:qwen source:mqtt after:2026-11-01 archived:yes pinned:yes"


@dataclass(frozen=True, slots=True)
class Chosen:
    """A chat to go to.

    Attributes:
        message_id: of the message in which the words are; None if no words were asked for.
    """

    key: str
    message_id: str | None
    words: tuple[str, ...]


class FindChat(Finder[Chosen]):
    """Asks for a chat. Without words, all are listed, the last used first.

    The store is searched on a thread; a text that is typed meanwhile is searched for next.

    Args:
        states: a word for chats that are open or have a running reply, by their ids.
        report: shows a change of a chat.
        undo: undoes the last change of a chat, and shows that.
        words: the search that the dialog opens with.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "hit(1)", "Next hit in this chat", show=False, id="find.next"),
        Binding("shift+tab", "hit(-1)", "Previous hit", show=False, id="find.previous"),
        Binding("f6", "rename", "Rename the chat found", show=False, id="find.rename"),
        Binding(
            "f7",
            "archive",
            "Archive the chat found, or unarchive it",
            show=False,
            id="find.archive",
        ),
        Binding("alt+t", "pin", "Pin the chat found, or unpin it", show=False, id="find.pin"),
        Binding("f8", "delete", "Delete the chat found", show=False, id="find.delete"),
        Binding("f12", "undo_chat", "Undo the last change of a chat", show=False, id="find.undo"),
    ]

    GLOSS: ClassVar[dict[str, str]] = {
        "“two words”": "they follow each other; the last word may be the beginning of one",
        "model:qwen": "chats with a reply of a model of this name",
        "source:you": "chats of the screen; source:mqtt are those held over MQTT",
        "after:2026-11-01": "a message is from that day on; before:… from before it",
        "archived:yes": "archived chats too",
        "pinned:yes": "pinned chats; pinned:no are the others",
    }

    def __init__(
        self,
        search: Search,
        states: Mapping[str, str],
        keeper: ChatKeeper,
        report: Callable[[Done], None],
        undo: Callable[[], None],
        words: str = "",
    ) -> None:
        super().__init__()
        self._words = words
        self._search = search
        self._states = states
        self._keeper = keeper
        self._report = report
        self._undo = undo
        self._typed: Query | None = None  # the search; None if it cannot be run
        self._query = Query()
        self._found: dict[str, Found] = {}
        self._excerpts: dict[str, str] = {}
        self._place = 0  # among the hits of the chat under the cursor
        self._hit: Hit | None = None
        # Whether a search is under way, and whether Enter waits for its result.
        self._is_searching = False
        self._is_entered = False

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label(
                f"Enter opens · {self.key_of('hit(1)')} next hit · {self.key_of('rename')} rename"
                f" {self.key_of('pin')} pin {self.key_of('archive')} archive"
                f" {self.key_of('delete')} delete"
                f" {self.key_of('undo_chat')} undo"
            )
            yield Entry(self._words, placeholder=_HINT)
            yield Label("", id="found", markup=False)
            yield OptionList()
            yield Static("", id="hit", markup=False)

    def on_mount(self) -> None:
        self._start_search(self._words)

    def on_screen_suspend(self) -> None:
        # If the user closes the dialog meanwhile, no chat is opened.
        self._is_entered = False

    def on_input_changed(self, event: Input.Changed) -> None:
        self._start_search(event.value)

    def on_input_submitted(self) -> None:
        self._choose()

    @on(OptionList.OptionSelected)
    def choose(self) -> None:
        self._choose()

    @on(OptionList.OptionHighlighted)
    def preview(self) -> None:
        found = self._current
        self._place = 0
        self._show_hit(found.best if found else None)

    def action_hit(self, places: int) -> None:
        """Preview another message of the chat in which the words are."""
        found = self._current
        # A running search holds the index, perhaps for seconds, and will replace these hits.
        if found is None or not found.numbers or self._is_searching:
            return
        self._place = (self._place + places) % len(found.numbers)
        with self._errors_shown():
            self._show_hit(self._search.hit(found.numbers[self._place]))

    def action_archive(self) -> None:
        self._do(self._keeper.archive)

    def action_pin(self) -> None:
        self._do(self._keeper.pin)

    def action_delete(self) -> None:
        self._do(self._keeper.delete)

    def action_undo_chat(self) -> None:
        self._undo()
        self._start_search(self.query_one(Input).value)

    def action_rename(self) -> None:
        found, keeper = self._current, self._keeper
        if found is None:
            return

        def rename(title: str | None) -> None:
            if title:
                with self._errors_shown():
                    keeper.rename(found.chat.id, title)
                    self._start_search(self.query_one(Input).value)

        with self._errors_shown():
            keeper.check(found.chat.id)
            self.app.push_screen(AskText("Title of this chat", found.chat.title), rename)

    @property
    def _current(self) -> Found | None:
        """The chat under the cursor."""
        return self._found.get(self.marked)

    def _choose(self) -> None:
        self._is_entered = self._is_searching
        if self._is_searching:
            return
        found = self._current
        if found is not None:
            sought = bool(self._query.phrases) and self._hit is not None
            message_id = self._hit.message_id if sought and self._hit else None
            self.dismiss(Chosen(found.chat.id, message_id, self._query.phrases))

    def _do(self, act: Callable[[str], Done | None]) -> None:
        found = self._current
        if found is None:
            return
        with self._errors_shown():
            if (done := act(found.chat.id)) is not None:
                self._report(done)
            self._start_search(self.query_one(Input).value)

    @contextmanager
    def _errors_shown(self) -> Iterator[None]:
        """Show an error above the list, and do not raise it."""
        try:
            yield
        except (HeldError, StoreError) as error:
            self._say(str(error))

    def _start_search(self, text: str) -> None:
        self._typed, self._is_entered = None, False
        try:
            self._typed = parse(text)
        except QueryError as error:
            self._list(Query(), [])
            self._say(f"{error}.")
            return
        if not self._is_searching:
            self._is_searching = True
            self.run_worker(self._find())

    async def _find(self) -> None:
        """Search for the typed words, and again if they were changed meanwhile."""
        query: Query | None = None
        found: list[Found] = []
        trouble = ""
        while self._typed is not query:
            query, found, trouble = self._typed, [], ""
            if query is not None:
                try:
                    # One more than are shown, to know whether these are all.
                    found = await asyncio.to_thread(self._search.find, query, MOST + 1)
                    self._excerpts = await asyncio.to_thread(_excerpts, found, query.phrases)
                except StoreError as error:
                    trouble = str(error)
        self._is_searching = False
        if not self.query(OptionList):
            return  # The program is ending and has removed the widgets already.
        if trouble:
            self._say(trouble)
        elif query is not None:
            self._show_found(query, found)

    def _show_found(self, query: Query, found: list[Found]) -> None:
        """List the chats of a search."""
        is_cut, found = len(found) > MOST, found[:MOST]
        self._list(query, found)
        if self._is_entered and found:
            self.call_later(self._choose)  # once the search is over
            return
        if not found:
            nothing = "No chat has all of these words." if query.phrases else "No chat matches."
            key = key_of("help", self.app, self.app)
            self._say(f"{nothing} {key} explains filters, such as archived:yes.")
            return
        hits = sum(len(one.numbers) for one in found)
        where = f", in {count(hits)} messages" if query.phrases and hits > len(found) else ""
        titles = "" if self._search.has_index else " (by title alone: this SQLite has no FTS5)"
        chats = f"{counted(len(found), 'chat')}{where}{titles}"
        more = "more words" if query.phrases else "words"
        self._say(f"the first {chats}; {more} narrow it" if is_cut else chats)

    def _list(self, query: Query, found: list[Found]) -> None:
        options = self.options
        before = options.highlighted
        same = query == self._query
        self._query, self._found = query, {one.chat.id: one for one in found}
        options.clear_options()
        options.add_options(Option(self._line(one), id=one.chat.id) for one in found)
        place = before if same and before is not None else 0
        options.highlighted = min(place, len(found) - 1) if found else None
        # Choose at once, because Enter may have waited for the result.
        self.preview()

    def _line(self, found: Found) -> Content:
        chat = found.chat
        day = time.strftime("%Y-%m-%d %H:%M", time.localtime(chat.updated))
        state = f"{self._states.get(chat.id, ''):4}"
        state = "put away" if chat.is_archived else state
        words = self._query.phrases
        line = Content.assemble(
            (f"{day}  {state}  ", "$text-muted"),
            marked(title_of(chat), words),
            (f"  {found.model}{' · pinned' if chat.pinned_at is not None else ''}", "$text-muted"),
        )
        if not words:
            return line
        if found.best is None:
            return Content("\n").join([line, Content.styled("    in the title", "$text-muted")])
        # It has one line, whatever the width of its characters and that of the dialog.
        part = UNICODE.fit(self._excerpts[chat.id])
        text = marked(shorten(part, self.options.size.width - _BESIDE), words)
        return Content("\n").join([line, Content("    ") + text])

    def _show_hit(self, hit: Hit | None) -> None:
        self._hit = hit
        preview, found = self.query_one("#hit", Static), self._current
        preview.display = hit is not None
        if hit is None or found is None:
            return
        who = {"user": "you", "tool": "a tool"}.get(hit.role, hit.model or "model")
        if found.chat.source != "screen" and hit.role == "user":
            who = found.chat.user
        day = time.strftime("%Y-%m-%d %H:%M", time.localtime(hit.created))
        of = f" · hit {self._place + 1} of {len(found.numbers)}" if self._query.phrases else ""
        words = self._query.phrases
        text = excerpt(hit.text, words, _PREVIEW, 80)
        head = Content.styled(f"{who}, {day}{of}", "$text-muted")
        preview.update(Content("\n").join([head, marked(text, words)]))

    def _say(self, sentence: str) -> None:
        self.query_one("#found", Label).update(Content(sentence))


class FindSent(Finder[str]):
    """Asks for a message that the user sent in any chat, by the beginnings of its words.

    Args:
        sent: reads these messages, the newest first; it is called on a thread.
    """

    def __init__(self, sent: Callable[[], list[str]]) -> None:
        super().__init__()
        self._read = sent
        self._sent: list[str] | None = None  # None until they are read
        self._folded: list[str] = []  # the same, as they are searched
        self._is_entered = False  # Enter waits for them

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label("Messages of all chats · Enter puts one into the prompt", markup=False)
            yield Entry(placeholder="words of the message")
            yield Label("", id="found", markup=False)
            yield OptionList()
            yield Static("", id="hit", markup=False)

    async def on_mount(self) -> None:
        self.run_worker(self._load())

    async def _load(self) -> None:
        found = self.query_one("#found", Label)
        try:
            sent = await asyncio.to_thread(self._read)
            self._folded = await asyncio.to_thread(lambda: [*map(folded, sent)])
        except StoreError as error:
            found.update(Content(str(error)))
            return
        if not self.query(OptionList):
            return  # the dialog was closed meanwhile
        self._sent = sent
        self._list()
        if self._is_entered:
            self._choose()

    def on_input_changed(self) -> None:
        self._is_entered = False
        self._list()

    def on_input_submitted(self) -> None:
        self._choose()

    @on(OptionList.OptionSelected)
    def choose(self) -> None:
        self._choose()

    @on(OptionList.OptionHighlighted)
    def preview(self) -> None:
        text = self._current
        preview = self.query_one("#hit", Static)
        preview.display = text is not None
        if text is not None:
            preview.update(marked(excerpt(text, self._words, _PREVIEW, 80), self._words))

    @property
    def _words(self) -> tuple[str, ...]:
        return tuple(self.query_one(Input).value.split())

    @property
    def _current(self) -> str | None:
        """The message under the cursor."""
        return self._sent[int(self.marked)] if self._sent is not None and self.marked else None

    def _choose(self) -> None:
        self._is_entered = self._sent is None
        if (text := self._current) is not None:
            self.dismiss(text)

    def _list(self) -> None:
        """List the messages that have the words."""
        if self._sent is None:
            return
        words, width = self._words, max(self.options.size.width - _BESIDE, 1)
        sought = [found for word in words if (found := pattern([word]))]
        texts = enumerate(self._folded)
        places = [n for n, text in texts if all(one.search(text) for one in sought)]
        options = self.options
        options.clear_options()
        options.add_options(
            Option(self._line(self._sent[place], words, width), id=str(place))
            for place in places[:MOST]
        )
        options.highlighted = 0 if places else None
        self.preview()
        cut = f"the newest {MOST} of " if len(places) > MOST else ""
        nothing = "No message has all of these words." if words else "No message was sent yet."
        line = f"{cut}{counted(len(places), 'message')}" if places else nothing
        self.query_one("#found", Label).update(Content(line))

    def _line(self, text: str, words: Sequence[str], width: int) -> Content:
        part = " ".join(excerpt(text, words, max(_SNIPPET, width), 20).split())
        return marked(shorten(UNICODE.fit(part), width), words)


def _excerpts(chats: list[Found], words: tuple[str, ...]) -> dict[str, str]:
    """A line of the best hit of each chat, which may have attachments of megabytes."""
    return {
        found.chat.id: excerpt(found.best.text, words, _SNIPPET, 20).replace("\n", " ")
        for found in chats
        if found.best is not None
    }


def excerpt(text: str, words: Sequence[str], length: int, before: int) -> str:
    """At most `length` characters around the first of these words, or from the beginning.

    Args:
        before: the most characters before it.
    """
    found = pattern(words)
    first = found.search(folded(text)) if found else None
    start = max(0, first.start() - before) if first else 0
    start = 0 if start + length >= len(text) and start < before else start
    part = text[start : start + length].strip()
    return ("…" if start else "") + part + ("…" if start + length < len(text) else "")


def marked(text: str, words: Sequence[str]) -> Content:
    """The shown text, with each occurrence of these words reversed."""
    shown = "\n".join(map(UNICODE.fit, text.split("\n")))
    content = Content(shown)
    if found := pattern(words):
        for hit in found.finditer(folded(shown)):
            content = content.stylize("reverse", hit.start(), hit.end())
    return content
