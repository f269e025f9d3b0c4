"""Chats above the store: their sessions, histories, branches and forks, and files of chats."""
