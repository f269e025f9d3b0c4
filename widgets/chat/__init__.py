"""Views of a chat: its messages, the prompt, the tabs."""
