"""Views: each takes data and paints it.

Widgets get the engine's plain data as it is; the numbers of chats, which the engine does not know,
come beside it as `ChatNumber`s. They know nothing of `app`.

A panel is drawn line by line (`line_view`). A `LineInput` lies over a panel's cells while something
is typed into them (`widgets.panels.field`).
"""
