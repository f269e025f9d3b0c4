"""Commands: the table of the deck's commands.

A command is one entry. Bindings, key bar, help, palette and slash commands are made from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from textual.app import App, SystemCommand
from textual.binding import Binding

from app.screens.bound import action_of, by_action
from app.screens.chats.chat import ChatPane
from app.screens.chats.sessions import SessionList
from app.screens.deck.chats import ChatActions
from app.screens.deck.control import EngineControl
from app.screens.deck.dialogue import Dialogue
from app.screens.deck.drafts import DraftActions, completed_paths
from app.screens.deck.files import ChatFiles
from app.screens.deck.messages import MessageActions
from app.screens.deck.settings import SettingsActions
from app.screens.deck.slash import SavedPrompts, Slash, SlashCommands, name_of
from app.screens.feeds.engine_watch import EngineWatch
from app.screens.feeds.gateway_watch import MqttWatch
from app.screens.panels import Panels


class Target(Protocol):
    """The part of the deck that commands use: the objects that act for the user, and the screen's
    panes and focus. The deck imports this module, so this module cannot import the deck."""

    user: Dialogue
    sessions: SessionList
    engine: EngineWatch
    mqtt: MqttWatch
    panels: Panels
    chat: ChatPane
    chats: ChatActions
    files: ChatFiles
    settings: SettingsActions
    drafts: DraftActions
    messages: MessageActions
    prompts: SavedPrompts
    slash: SlashCommands
    control: EngineControl

    @property
    def has_selection(self) -> bool: ...
    @property
    def is_at_engine(self) -> bool: ...
    @property
    def is_zoomed(self) -> bool: ...
    @property
    def escape(self) -> str: ...
    def has_class(self, *names: str) -> bool: ...
    def to_chat(self) -> None: ...
    def toggle_engine(self) -> None: ...
    def toggle_chats(self) -> None: ...
    def go_to_panel(self, number: int) -> None: ...
    def go_to_knob_history(self) -> None: ...
    def step_panel(self, places: int) -> None: ...
    def zoom(self) -> None: ...
    def read(self) -> None: ...
    def leave(self) -> None: ...
    def leave_edit(self) -> None: ...
    def go_back(self) -> None: ...
    def copy_selection(self) -> None: ...
    def load_model(self, wish: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class Typed:
    """A command as a line of the prompt: a slash, the name and a text.

    Attributes:
        does: the command in a few words.
        takes: a word for the text.
        run: is called with the text; False if it was refused, with a message to the user. Without
            a text, the `run` of the command is called, if it has one.
        completed: the completions of a text.
    """

    name: str
    does: str
    takes: str
    run: Callable[[Target, str], object]
    completed: Callable[[str], Sequence[str]] = lambda _: ()


@dataclass(frozen=True, slots=True)
class Key:
    """The keys of a command.

    Attributes:
        keys: separated by commas.
        id: the name by which the user changes the keys; several commands may share it.
        words: the label on the key bar.
        tip: a sentence for the help; empty if it is the label.
        show: whether the key bar shows it while it is enabled.
        first: whether the key acts before the widget that has the focus.
    """

    keys: str
    id: str
    words: str
    tip: str = ""
    show: bool = False
    first: bool = False


@dataclass(frozen=True, slots=True)
class Offer:
    """A command in the palette, and after a slash by its title with dashes.

    Attributes:
        rank: the palette is sorted by it; commands of one rank stay in the table's order.
        does: the command in a few words; empty if that is the text of its key.
        offered: whether the palette lists it now.
    """

    rank: int
    title: str | Callable[[Target], str]
    does: str | Callable[[Target], str] = ""
    offered: Callable[[Target], bool] = lambda _: True


@dataclass(frozen=True, slots=True)
class Command:
    """One command.

    Attributes:
        run: None if the command is only a line with a text.
        when: whether its key is enabled. The palette runs a command at any time.
        of_transcript: the transcript's action that it runs, whose key the palette shows.
        alias: its name, if its keys have the id of another command.
    """

    run: Callable[[Target], object] | None = None
    key: Key | None = None
    offer: Offer | None = None
    typed: Typed | None = None
    when: Callable[[Target], bool] = lambda _: True
    of_transcript: str = ""
    alias: str = ""

    @property
    def name(self) -> str:
        """The name that runs it: the id of its keys, or without keys the name after a slash."""
        if self.key is not None:
            return self.alias or self.key.id
        if self.offer is not None:
            return name_of(str(self.offer.title))
        return self.typed.name if self.typed is not None else ""


def _in_prompt(deck: Target) -> bool:
    return deck.chat.prompt.area.has_focus


def _in_transcript(deck: Target) -> bool:
    return deck.chat.transcript.has_focus


def _in_table(deck: Target) -> bool:
    return deck.panels.table.has_focus


def _run_in_transcript(action: str, deck: Target) -> None:
    getattr(deck.chat.transcript, f"action_{action}")()


def _has_model(deck: Target) -> bool:
    return deck.engine.snapshot is not None


def _can_follow(deck: Target) -> bool:
    # Prompt and transcript both know the key.
    area = deck.chat.prompt.area
    return area.cursor_at_end_of_text if area.has_focus else _in_transcript(deck)


def _can_page(deck: Target) -> bool:
    return _in_prompt(deck) or _in_transcript(deck)


def _escapes(name: str) -> Callable[[Target], bool]:
    return lambda deck: deck.escape == name


def _switch(name: str, title: str, start: str, end: str) -> Command:
    """A command that turns a switch of the engine; the palette says in which direction."""

    def does(deck: Target) -> str:
        knob = deck.engine.knob(name)
        return end if knob and knob.requested else start

    run = partial(lambda name, d: d.control.switch_knob(name), name)
    return Command(run, offer=Offer(10, title, does, _has_model))


def _archives(deck: Target) -> str:
    archived = deck.sessions.current.chat.conversation.is_archived
    return "Unarchive chat" if archived else "Archive chat"


def _pins(deck: Target) -> str:
    is_pinned = deck.sessions.current.chat.conversation.pinned_at is not None
    return "Unpin chat" if is_pinned else "Pin chat"


# In the order of help, and of the key bar.
COMMANDS: tuple[Command, ...] = (
    # Chats.
    Command(
        lambda d: d.chats.close(),
        Key("ctrl+w", "chat.close", "Close chat", "Close the chat; it is kept"),
        Offer(2, "Close chat"),
    ),
    Command(lambda d: d.chats.step(-1), Key("ctrl+pageup", "chat.previous", "Previous chat")),
    Command(lambda d: d.chats.step(1), Key("ctrl+pagedown,f4", "chat.next", "Next chat")),
    *(
        Command(
            partial(lambda n, d: d.chats.pick(n), n),
            Key(f"alt+{n}", f"chat.{n}", "Chat by its number", f"Chat number {n}"),
        )
        for n in range(1, 10)
    ),
    Command(
        lambda d: d.toggle_chats(),
        Key(
            "ctrl+t",
            "view.chats",
            "Chats",
            "Go to the list of all chats, or show and hide it",
            first=True,
        ),
        Offer(4, "Chats at the side"),
    ),
    Command(
        lambda d: d.chats.ask_title(),
        Key("f6", "chat.rename", "Rename chat", "Give the chat another title", first=True),
        Offer(4, "Rename chat"),
        typed=Typed(
            "rename", "Give the chat another title", "TITLE", lambda d, t: d.chats.rename_current(t)
        ),
    ),
    Command(
        lambda d: d.chats.pin(),
        Key(
            "alt+t",
            "chat.pin",
            "Pin chat",
            "Pin the chat to the top of the list, or unpin it",
            first=True,
        ),
        Offer(4, _pins),
    ),
    Command(
        lambda d: d.chats.archive(),
        Key("f7", "chat.archive", "Archive chat", "Archive the chat, or unarchive it", first=True),
        Offer(4, _archives),
    ),
    Command(
        lambda d: d.chats.delete(),
        Key("f8", "chat.delete", "Delete chat", "Delete the chat; it can be undone", first=True),
        Offer(4, "Delete chat"),
    ),
    Command(
        lambda d: d.chats.undo(),
        Key(
            "f12",
            "chat.undo",
            "Undo",
            "Undo closing, pinning, archiving or deleting a chat",
            first=True,
        ),
        Offer(4, "Undo"),
    ),
    Command(
        lambda d: d.files.duplicate(), offer=Offer(4, "Duplicate chat", "With all its branches")
    ),
    Command(lambda d: d.files.copy(), offer=Offer(4, "Copy chat", "To the clipboard, as Markdown")),
    Command(
        lambda d: d.files.export_markdown(),
        offer=Offer(4, "Export chat as Markdown", "The branch on view"),
    ),
    Command(
        lambda d: d.files.export_json(),
        offer=Offer(4, "Export chat as JSON", "To be imported again"),
    ),
    Command(
        lambda d: d.files.export_all(), offer=Offer(4, "Export all chats", "As JSON, in one file")
    ),
    Command(
        lambda d: d.files.ask_import(),
        offer=Offer(4, "Import chats…", "From a JSON file"),
        typed=Typed(
            "import",
            "Import chats from a JSON file",
            "PATH",
            lambda d, t: d.files.import_chats(t, partial(d.slash.restore_line, f"/import {t}")),
            completed_paths,
        ),
    ),
    # Messages.
    Command(
        lambda d: d.read(),
        Key("ctrl+up", "chat.read", "Messages", "Go from message to message and act on them"),
        Offer(9, "Messages"),
    ),
    *(
        Command(partial(_run_in_transcript, action), offer=Offer(9, title), of_transcript=action)
        for action, title in (
            ("copy_message", "Copy message"),
            ("copy_code", "Copy code"),
            ("thinking", "Show or fold thinking"),
            ("fold", "Unfold message"),
        )
    ),
    # The prompt is a few lines high, so these keys page the transcript.
    Command(
        lambda d: d.chat.transcript.action_page_up(),
        Key("pageup", "chat.page_up", "Page up", first=True),
        when=_can_page,
    ),
    Command(
        lambda d: d.chat.transcript.action_page_down(),
        Key("pagedown", "chat.page_down", "Page down", first=True),
        when=_can_page,
    ),
    Command(
        lambda d: d.copy_selection(),
        Key(
            "ctrl+c,super+c",
            "chat.copy_selection",
            "Copy selection",
            "Copy what the mouse selected",
            show=True,
        ),
        when=lambda d: d.has_selection,
    ),
    Command(
        lambda d: d.chat.transcript.action_scroll_end(),
        Key("end", "chat.follow", "Follow the reply", first=True),
        when=_can_follow,
    ),
    # Settings of the chat, and the draft.
    Command(
        lambda d: d.settings.ask(),
        Key(
            "f5", "chat.settings", "Settings", "System prompt and sampling of this chat", first=True
        ),
        Offer(5, "Settings of the chat…"),
    ),
    Command(
        lambda d: d.settings.pick_preset(),
        Key("alt+s", "chat.presets", "Presets", "Settings saved under a name", first=True),
        Offer(5, "Presets…"),
        typed=Typed(
            "preset", "Set the chat to a preset", "NAME", lambda d, t: d.settings.apply_preset(t)
        ),
    ),
    Command(
        lambda d: d.settings.ask_preset_name(),
        offer=Offer(5, "Save settings as preset…", "Those of this chat"),
    ),
    Command(
        lambda d: d.prompts.ask_name(),
        offer=Offer(5, "Save prompt as…", "Save the draft under a name"),
    ),
    *(
        Command(typed=line)
        for line in (
            Typed(
                "model",
                "Load a model, quantized or not",
                "NAME WIDTH",
                lambda d, t: d.load_model(t),
            ),
            Typed(
                "save",
                "Save TEXT, or your last message",
                "NAME TEXT",
                lambda d, t: d.prompts.save(t),
            ),
            Typed(
                "system",
                "The system prompt; empty for none",
                "TEXT",
                lambda d, t: d.settings.set_system(t),
            ),
            Typed(
                "thinking",
                "Whether the model thinks first",
                "on or off",
                lambda d, t: d.settings.set_thinking(t),
            ),
        )
    ),
    # This is an action and not a message posted by the prompt, so that it runs before the next key
    # is handled.
    Command(lambda d: d.slash.enter(), Key("enter", "prompt.send", "Send"), when=_in_prompt),
    Command(
        lambda d: d.messages.branch(-1),
        Key("alt+left", "chat.branch_before", "Previous branch", "Show the previous branch (n/m)"),
        Offer(8, "Previous branch"),
        when=lambda d: not d.has_class("-engine") and d.chat.has_focus_within,
    ),
    Command(
        lambda d: d.messages.branch(1),
        Key("alt+right", "chat.branch_next", "Next branch", "Show the next branch (n/m)"),
        Offer(8, "Next branch"),
        when=lambda d: not d.has_class("-engine") and d.chat.has_focus_within,
    ),
    # The key bar shows these where there are branches.
    Command(
        lambda d: d.messages.branch(-1),
        Key("left_square_bracket", "chat.branch_before", "Previous branch", show=True),
        alias="message.branch_before",
        when=lambda d: _in_transcript(d) and d.messages.has_branches,
    ),
    Command(
        lambda d: d.messages.branch(1),
        Key("right_square_bracket", "chat.branch_next", "Next branch", show=True),
        alias="message.branch_next",
        when=lambda d: _in_transcript(d) and d.messages.has_branches,
    ),
    Command(
        lambda d: d.messages.regenerate(),
        Key("ctrl+r", "chat.regenerate", "Regen", "Ask for another reply", show=True),
        Offer(7, "Regenerate reply"),
        when=lambda d: d.sessions.current.can_regenerate,
    ),
    Command(
        lambda d: d.messages.resume(),
        Key("alt+c", "chat.resume", "Continue", "Continue a reply where it ended", show=True),
        Offer(7, "Continue the reply"),
        when=lambda d: d.chat.can_resume,
    ),
    Command(
        lambda d: d.messages.edit(),
        Key("e", "chat.edit", "Edit", "Change your message and send it again", show=True),
        Offer(7, "Edit message"),
        when=_in_transcript,
    ),
    Command(
        lambda d: d.messages.fork(),
        Key(
            "f", "chat.fork", "Fork here", "Open a new chat with the messages up to here", show=True
        ),
        Offer(7, "Fork here"),
        when=_in_transcript,
    ),
    # Escape does what the key bar says, and nothing else.
    Command(
        lambda d: d.messages.stop(),
        Key("escape", "chat.stop", "Stop", "Stop the running reply", show=True),
        Offer(6, "Stop reply"),
        when=_escapes("chat.stop"),
    ),
    Command(
        lambda d: d.messages.stop_theirs(),
        Key("escape", "chat.stop_theirs", "Stop theirs…", "Ask, then stop their reply", show=True),
        when=_escapes("chat.stop_theirs"),
    ),
    Command(
        lambda d: d.leave_edit(),
        Key(
            "escape", "chat.keep", "Don't edit", "Stop editing, and keep the old message", show=True
        ),
        when=_escapes("chat.keep"),
    ),
    Command(
        lambda d: d.go_back(),
        Key("escape", "view.back", "Back", "Back to the panel", show=True),
        when=_escapes("view.back"),
    ),
    Command(
        lambda d: d.leave(),
        Key("escape", "view.leave", "Chat", "Back to the prompt", show=True),
        when=_escapes("view.leave"),
    ),
    Command(
        lambda d: d.prompts.pick(),
        Key("alt+p", "prompt.saved", "Saved prompts", "Insert or edit a saved prompt", first=True),
        Offer(5, "Saved prompts…"),
    ),
    Command(
        lambda d: d.prompts.find_sent(),
        Key(
            "alt+r",
            "prompt.history",
            "History",
            "Find a message that you sent in any chat, to send it again",
            first=True,
        ),
        Offer(5, "Search history…"),
    ),
    Command(
        lambda d: d.drafts.open_editor(),
        Key(
            "alt+e",
            "prompt.editor",
            "Editor",
            "Write the message in your editor (VISUAL or EDITOR)",
            first=True,
        ),
        Offer(5, "Write in editor"),
    ),
    Command(
        lambda d: d.drafts.ask_attachment(),
        offer=Offer(5, "Attach file…", "Attach a text file to the message"),
        typed=Typed(
            "attach",
            "Attach a text file to the message",
            "PATH",
            lambda d, t: d.drafts.attach(t),
            completed_paths,
        ),
    ),
    Command(
        lambda d: d.drafts.detach_last(),
        offer=Offer(5, "Remove attachment", "The last one of this message"),
    ),
    # Chat and engine. F2 acts before the focused widget, so that keys typed after it go to the pane
    # that it has shown.
    Command(
        lambda d: d.toggle_engine(),
        Key("f2", "view.mode", "Engine", "Switch between chat and engine", show=True, first=True),
        Offer(11, "Chat or engine"),
        when=lambda d: not d.is_at_engine,
    ),
    # The key bar shows Escape for it.
    Command(
        lambda d: d.to_chat(),
        Key("f2", "view.mode", "Chat", first=True),
        alias="view.chat",
        when=lambda d: d.is_at_engine,
    ),
    Command(
        lambda d: d.control.pick_policy(),
        Key("p", "knobs.policy", "Policy", "Choose the policy", show=True),
    ),
    Command(
        lambda d: d.control.pin(),
        offer=Offer(10, "Pin system prompt", "Never evict it from the KV cache"),
    ),
    Command(
        lambda d: d.control.unpin(),
        offer=Offer(10, "Unpin system prompt", "Allow its eviction again"),
    ),
    Command(
        lambda d: d.control.undo_knob(),
        Key("u", "knobs.undo", "Undo", "Undo the last knob change, even another user's", show=True),
        Offer(10, "Undo the last knob change", offered=_has_model),
    ),
    Command(
        lambda d: d.go_to_knob_history(),
        offer=Offer(10, "History of knobs", "Who changed what", offered=_has_model),
    ),
    # A title has both words, so that the palette finds it by either.
    _switch("paused", "Pause or resume", "All requests stand still", "Paused now: all continue"),
    _switch(
        "draining", "Drain or stop draining", "Admit no new requests", "Draining now: admit again"
    ),
    Command(
        lambda d: d.control.reconnect(),
        offer=Offer(
            10,
            "Reconnect MQTT",
            "Connect to the broker now",
            offered=lambda d: d.mqtt.gateway is not None,
        ),
    ),
    Command(
        lambda d: d.chats.new(),
        Key("ctrl+n", "chat.new", "New", "Open an empty chat", show=True),
        Offer(1, "New chat"),
    ),
    Command(
        lambda d: d.chats.find(),
        Key("f3", "chat.find", "Find", "Find any chat and open it", show=True, first=True),
        Offer(3, "Find chat…"),
        typed=Typed("search", "Find any chat", "WORDS", lambda d, t: d.chats.find(t)),
    ),
    # Not before the focused panel: a digit may be part of a number that is being typed there.
    *(
        Command(
            partial(lambda n, d: d.go_to_panel(n), n),
            Key(f"{n}", f"panel.{n}", "Panel by its number", f"Panel number {n}"),
        )
        for n in range(1, 10)
    ),
    Command(lambda d: d.step_panel(1), Key("tab", "panel.next", "Next panel")),
    Command(lambda d: d.step_panel(-1), Key("shift+tab", "panel.previous", "Previous panel")),
    Command(
        lambda d: d.control.stop_request(),
        Key("x", "table.stop", "Stop", "Stop the request", show=True),
        when=_in_table,
    ),
    Command(
        lambda d: d.control.prioritize(1),
        Key("plus", "table.raise", "Priority", "Raise the request's priority", show=True),
        when=_in_table,
    ),
    Command(
        lambda d: d.control.prioritize(-1),
        Key("minus", "table.lower", "Lower the request's priority"),
        when=_in_table,
    ),
    Command(
        lambda d: d.zoom(),
        Key("z", "view.zoom", "Zoom", "Show one panel on the whole screen", show=True),
        Offer(11, "Zoom panel"),
        when=lambda d: not d.is_zoomed,
    ),
    Command(
        lambda d: d.zoom(),
        Key("z", "view.zoom", "All panels", show=True),
        alias="view.unzoom",
        when=lambda d: d.is_zoomed,
    ),
)

BY_NAME = {command.name: command for command in COMMANDS}


def bindings() -> list[Binding]:
    """The bindings of the screen."""
    return [
        Binding(
            key.keys,
            action_of(command.name),
            key.words,
            show=key.show,
            priority=key.first,
            tooltip=key.tip,
            id=key.id,
        )
        for command in COMMANDS
        if (key := command.key) is not None
    ]


def typed(deck: Target) -> list[Slash]:
    """The commands that are lines of the prompt, by name."""

    def run(command: Command, line: Typed, text: str) -> object:
        if text or command.run is None:
            return line.run(deck, text)
        command.run(deck)
        return True

    return sorted(
        (
            Slash(line.name, line.does, partial(run, command, line), line.takes, line.completed)
            for command in COMMANDS
            if (line := command.typed) is not None
        ),
        key=lambda slash: slash.name,
    )


def palette(deck: Target) -> Iterator[SystemCommand]:
    """The commands of the palette, by rank."""
    transcript = deck.chat.transcript
    keys, its_keys = deck.user.keys(), by_action(transcript, transcript.app)
    found = [(command.offer, command) for command in COMMANDS if command.offer is not None]
    for offer, command in sorted(found, key=lambda pair: pair[0].rank):
        if command.run is None or not offer.offered(deck):
            continue
        key = keys.get(action_of(command.name))
        if command.of_transcript:
            key = its_keys.get(command.of_transcript)
        title, does = (
            text if isinstance(text, str) else text(deck) for text in (offer.title, offer.does)
        )
        yield entry(title, partial(command.run, deck), transcript.app, does, key)


def choices(deck: Target) -> Iterator[SystemCommand]:
    """The policies and the panels, each as a command of the palette."""
    from engine.scheduling.policies import policy_meanings

    app, policies, meanings = deck.chat.app, deck.engine.knob("policy"), policy_meanings()
    for name in map(str, policies.allowed.choices if policies else ()):
        does = meanings.get(name, "A batching policy")
        yield entry(f"Policy: {name}", partial(deck.control.set_knob, "policy", name), app, does)
    keys = deck.user.keys()
    for number, (name, _) in enumerate(deck.panels.numbered, 1):
        key = keys.get(action_of(f"panel.{number}"))
        yield entry(f"Panel: {name}", partial(deck.go_to_panel, number), app, "Go to it", key)


def entry(
    title: str, run: Callable[[], Any], app: App[Any], does: str = "", key: Binding | None = None
) -> SystemCommand:
    """A command of the palette, with its key as the user has set it. If `does` is empty, it has the
    text of the key."""
    if key is not None:
        does = f"{app.get_key_display(key)} · {does or key.tooltip or key.description}"
    return SystemCommand(title, does, run)
