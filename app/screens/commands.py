"""Commands: what the palette offers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from textual.app import SystemCommand

from app.screens.deck.deck import Deck
from app.screens.policies import policy_meanings


def actions(deck: Deck) -> Iterator[SystemCommand]:
    """What can be done, to the chat on view first."""
    transcript = deck.chat.transcript
    yield SystemCommand("New chat", "Open an empty one", deck.action_new)
    yield SystemCommand("Close chat", "Take it off the screen; it is kept", deck.action_close)
    yield SystemCommand("Find chat…", "Find any chat and open it", deck.action_find)
    yield SystemCommand("Chats at the side", "Go there, show or hide them", deck.action_chats)
    yield SystemCommand("Rename chat", "Give it another title", deck.action_rename)
    archived = deck.sessions.current.chat.conversation.is_archived
    word = "Take chat out of the archive" if archived else "Archive chat"
    yield SystemCommand(word, "Out of tabs, list and search", deck.action_archive)
    yield SystemCommand("Delete chat", "Its reply is stopped; it can be undone", deck.action_delete)
    yield SystemCommand("Undo", "Of closing, archiving, deleting a chat", deck.action_undo_chat)
    yield SystemCommand("Duplicate chat", "With all its branches", deck.action_duplicate)
    yield SystemCommand("Copy chat", "To the clipboard, as Markdown", deck.action_copy_chat)
    yield SystemCommand("Export chat as Markdown", "The branch on view", deck.action_export)
    yield SystemCommand("Export chat as JSON", "To be imported again", deck.action_export_json)
    yield SystemCommand("Export all chats", "As JSON, in one file", deck.action_export_all)
    yield SystemCommand("Import chats…", "From a JSON file", deck.action_import)
    yield SystemCommand("Settings of the chat…", "With what it is asked", deck.action_settings)
    yield SystemCommand("Presets…", "Settings kept under a name", deck.action_presets)
    yield SystemCommand("Save settings as preset…", "Those of this chat", deck.action_save_preset)
    yield SystemCommand("Save prompt as…", "Keep what is written", deck.action_save_prompt)
    yield SystemCommand("Saved prompts…", "Insert, edit or delete one", deck.action_prompts)
    yield SystemCommand("Attach file…", "Send a text file along", deck.action_attach)
    yield SystemCommand(
        "Take attachment away", "The last one of this message", deck.action_drop_attachment
    )
    yield SystemCommand("Stop reply", "End the reply being made", deck.action_stop)
    yield SystemCommand("Regenerate reply", "Ask for another one", deck.action_regenerate)
    yield SystemCommand("Continue the reply", "Go on where it ended", deck.action_resume)
    yield SystemCommand("Edit message", "Send it in other words", deck.action_edit_last)
    yield SystemCommand("Fork here", "A chat of its own up to this message", deck.action_fork)
    yield SystemCommand(
        "Branch before", "At n/m, what came before", partial(deck.action_branch, -1)
    )
    yield SystemCommand("Next branch", "At n/m, what came after", partial(deck.action_branch, 1))
    yield SystemCommand("Messages", "Go from one to the other and act on them", deck.action_read)
    yield SystemCommand(
        "Copy message", "The marked one, else the last reply", transcript.action_copy_message
    )
    yield SystemCommand(
        "Copy code", "Of the marked message or the last", transcript.action_copy_code
    )
    yield SystemCommand("Show or fold thinking", "Of every reply", transcript.action_thinking)
    yield SystemCommand("Unfold message", "The marked one; or fold it", transcript.action_fold)
    yield SystemCommand("Pin system prompt", "Keep it in the KV cache for good", deck.action_pin)
    yield SystemCommand("Unpin system prompt", "Let it be evicted again", deck.action_unpin)
    yield from _knob_commands(deck)
    if deck.mqtt.gateway is not None:
        yield SystemCommand("Reconnect MQTT", "Connect to the broker now", deck.action_reconnect)
    yield SystemCommand("Chat or engine", "Change what is on view", deck.action_mode)
    yield SystemCommand("Zoom panel", "One panel on the whole screen", deck.action_zoom)


def choices(deck: Deck) -> Iterator[SystemCommand]:
    """What there is to choose among."""
    policies = deck.engine.knob("policy")
    meanings = policy_meanings()
    for name in map(str, policies.allowed.choices if policies else ()):
        does = meanings.get(name, "A batching policy")
        yield SystemCommand(f"Policy: {name}", does, partial(deck.set_knob, "policy", name))
    for number, (name, _) in enumerate(deck.panels.numbered, 1):
        yield SystemCommand(f"Panel: {name}", "Go to it", partial(deck.action_panel, number))


def _knob_commands(deck: Deck) -> Iterator[SystemCommand]:
    if deck.engine.snapshot is None:
        return
    yield SystemCommand("Undo the last knob change", "Whoever made it", deck.action_undo)
    yield SystemCommand("History of knobs", "Who changed what", deck.action_knob_history)
    for name, start, end, does in (
        ("paused", "Pause", "Resume", "All stand still, or go on"),
        ("draining", "Drain", "Stop draining", "Admit nothing new, or admit again"),
    ):
        knob = deck.engine.knob(name)
        word = end if knob and knob.requested else start
        yield SystemCommand(word, does, partial(deck.switch_knob, name))
