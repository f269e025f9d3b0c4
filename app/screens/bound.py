"""Bound: the keys that a node has, as the user has set them."""

from __future__ import annotations

from textual.app import App
from textual.binding import Binding
from textual.dom import DOMNode


def action_of(command: str) -> str:
    """The action that runs a command of the deck, as bindings state it."""
    return f"run('{command}')"


def bindings_of(node: DOMNode, app: App[int] | None = None) -> list[Binding]:
    """The bindings of a node; if `app` is given, as its keymap changes them.

    This reads private parts of Textual 8.2. Its public `Screen.active_bindings` has only the nodes
    around the focus, and nothing public gives the keymap.
    """
    bindings = node._bindings.copy()
    if app is not None:
        bindings.apply_keymap(app._keymap)
    return [binding for _key, binding in bindings]


def by_action(node: DOMNode, app: App[int]) -> dict[str, Binding]:
    """The binding for each action of a node: the first one, but a binding with a description takes
    precedence over bindings without one, which only share its key."""
    bound: dict[str, Binding] = {}
    for binding in sorted(bindings_of(node, app), key=lambda binding: not binding.tooltip):
        bound.setdefault(binding.action, binding)
    return bound


def key_of(action: str, node: DOMNode, app: App[int]) -> str:
    """The shown form of the key that runs an action of a node; empty if there is none."""
    binding = by_action(node, app).get(action)
    return "" if binding is None else app.get_key_display(binding)


def sign_of(key: str, app: App[int]) -> str:
    """The shown form of a key. Its binding may represent a group of keys on the key bar, and has a
    sign for them."""
    return app.get_key_display(Binding(key, "", ""))
