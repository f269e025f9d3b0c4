"""Chats to token ids in processes of their own, and token ids to text as they come."""
