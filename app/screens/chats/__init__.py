"""The chats that are open, and how they are shown.

`SessionList` has the open chats and reads one when it is first shown; each switch saves which one
is on view. `ChatKeeper` closes, archives and deletes chats, and undoes that. The `Sidebar` reads a
row of each chat when a chat was added, changed or removed, and paints the rows in view.
"""
