"""Commands: what the palette offers, each with its key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import MethodType
from typing import Any

from textual.app import App, SystemCommand
from textual.binding import Binding
from textual.dom import DOMNode

from app.screens.bound import by_action
from app.screens.deck.deck import Deck
from app.screens.policies import policy_meanings

# What a command does of which the binding of its key says that.
BOUND = ""


def with_keys(
    commands: Iterable[SystemCommand], app: App[int], *nodes: DOMNode
) -> Iterator[SystemCommand]:
    """Commands with their keys, as the user has set them.

    Args:
        nodes: whose actions the commands are.
    """
    bound: dict[tuple[object, str], Binding] = {
        (node, action): binding
        for node in nodes
        for action, binding in by_action(node, app).items()
    }
    for command in commands:
        if binding := bound.get(_action(command.callback)):
            does = command.help or binding.tooltip or binding.description
            command = command._replace(help=f"{app.get_key_display(binding)} · {does}")
        yield command


def _action(callback: Callable[..., Any]) -> tuple[object, str]:
    """Whose action is called, and the action as bindings have it."""
    call = callback if isinstance(callback, partial) else partial(callback)
    if not isinstance(call.func, MethodType):
        return None, ""
    name = call.func.__name__.removeprefix("action_")
    given = f"({', '.join(map(repr, call.args))})" if call.args else ""
    return call.func.__self__, f"{name}{given}"


def actions(deck: Deck) -> Iterator[SystemCommand]:
    """What can be done, to the chat on view first."""
    transcript = deck.chat.transcript
    yield SystemCommand("New chat", BOUND, deck.action_new)
    yield SystemCommand("Close chat", BOUND, deck.action_close)
    yield SystemCommand("Find chat…", BOUND, deck.action_find)
    yield SystemCommand("Chats at the side", BOUND, deck.action_chats)
    yield SystemCommand("Rename chat", BOUND, deck.action_rename)
    archived = deck.sessions.current.chat.conversation.is_archived
    word = "Take chat out of the archive" if archived else "Archive chat"
    yield SystemCommand(word, BOUND, deck.action_archive)
    yield SystemCommand("Delete chat", BOUND, deck.action_delete)
    yield SystemCommand("Undo", BOUND, deck.action_undo_chat)
    yield SystemCommand("Duplicate chat", "With all its branches", deck.action_duplicate)
    yield SystemCommand("Copy chat", "To the clipboard, as Markdown", deck.action_copy_chat)
    yield SystemCommand("Export chat as Markdown", "The branch on view", deck.action_export)
    yield SystemCommand("Export chat as JSON", "To be imported again", deck.action_export_json)
    yield SystemCommand("Export all chats", "As JSON, in one file", deck.action_export_all)
    yield SystemCommand("Import chats…", "From a JSON file", deck.action_import)
    yield SystemCommand("Settings of the chat…", BOUND, deck.action_settings)
    yield SystemCommand("Presets…", BOUND, deck.action_presets)
    yield SystemCommand("Save settings as preset…", "Those of this chat", deck.action_save_preset)
    yield SystemCommand("Save prompt as…", "Keep what is written", deck.action_save_prompt)
    yield SystemCommand("Saved prompts…", BOUND, deck.action_prompts)
    yield SystemCommand("Attach file…", "Send a text file along", deck.action_attach)
    yield SystemCommand(
        "Take attachment away", "The last one of this message", deck.action_drop_attachment
    )
    yield SystemCommand("Stop reply", BOUND, deck.action_stop)
    yield SystemCommand("Regenerate reply", BOUND, deck.action_regenerate)
    yield SystemCommand("Continue the reply", BOUND, deck.action_resume)
    yield SystemCommand("Edit message", BOUND, deck.action_edit_last)
    yield SystemCommand("Fork here", BOUND, deck.action_fork)
    yield SystemCommand("Branch before", BOUND, partial(deck.action_branch, -1))
    yield SystemCommand("Next branch", BOUND, partial(deck.action_branch, 1))
    yield SystemCommand("Messages", BOUND, deck.action_read)
    yield SystemCommand("Copy message", BOUND, transcript.action_copy_message)
    yield SystemCommand("Copy code", BOUND, transcript.action_copy_code)
    yield SystemCommand("Show or fold thinking", BOUND, transcript.action_thinking)
    yield SystemCommand("Unfold message", BOUND, transcript.action_fold)
    yield SystemCommand("Pin system prompt", "Keep it in the KV cache for good", deck.action_pin)
    yield SystemCommand("Unpin system prompt", "Let it be evicted again", deck.action_unpin)
    yield from _knob_commands(deck)
    if deck.mqtt.gateway is not None:
        yield SystemCommand("Reconnect MQTT", "Connect to the broker now", deck.action_reconnect)
    yield SystemCommand("Chat or engine", BOUND, deck.action_mode)
    yield SystemCommand("Zoom panel", BOUND, deck.action_zoom)


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
    yield SystemCommand("Undo the last knob change", BOUND, deck.action_undo)
    yield SystemCommand("History of knobs", "Who changed what", deck.action_knob_history)
    # Both words of each find it, whichever it does now.
    for name, title, start, end in (
        ("paused", "Pause or resume", "All stand still", "Paused now: all go on"),
        ("draining", "Drain or stop draining", "Admit nothing new", "Draining now: admit again"),
    ):
        knob = deck.engine.knob(name)
        does = end if knob and knob.requested else start
        yield SystemCommand(title, does, partial(deck.switch_knob, name))
