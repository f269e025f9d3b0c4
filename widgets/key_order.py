"""Key order: makes keys and text take effect in the order in which they were typed."""

from __future__ import annotations

from textual import events
from textual.widget import Widget


async def run_bound(widget: Widget, event: events.Key) -> None:
    """Run a key's binding at once, unless the key is text. The `on_key` of text widgets calls this.

    Textual runs bindings from the app's queue, while characters wait in the widget's own queue. If
    keys came faster than the screen is painted, Enter would overtake the text before it.
    """
    # Terminals without the kitty protocol, such as tmux, send Alt with a letter as a printable one.
    is_alt = event.key.startswith("alt+")
    if event.is_printable and not is_alt:
        return
    bound = widget.screen.active_bindings.get(event.key)
    if bound is not None and await widget.app.run_action(bound.binding.action, bound.node):
        event.stop()
        event.prevent_default()
    elif event.is_printable:
        event.prevent_default()  # It is not text, even if it has no binding now.
