"""The chats that are open, and how they are shown."""
