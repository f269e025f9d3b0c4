"""The one screen, the table of commands on it, and the objects that carry them out.

The `Deck` lays out the panes, and decides which has the focus and what Escape does. Its commands
are one table, `COMMANDS`. An entry has the function to run, the key and when that is enabled, the
title in the palette, and the form as a line with a slash; bindings, key bar, help, palette and
slash commands are made from it. The function calls a method of a plain object that the deck owns,
such as `ChatActions`, `MessageActions` or `EngineControl`. Each gets the objects that it needs, and
shows messages and dialogs through `Dialogue`. A key of a single widget is a binding of that widget,
which posts a message to the deck.
"""
