"""Views of a chat: its messages, the prompt, the tabs.

Replies are Markdown, parsed by markdown-it and set by `typeset` in rows of one widget. Textual's
own `Markdown` makes a widget of each block and lays out all of them anew for each delta of a
stream, which is slow below a long chat. Here only changed rows are painted, and only messages that
come into view are set (`passages`): the height of the others is a guess by the length of their
text, corrected when they are scrolled to, while the visible rows keep their place.
"""
