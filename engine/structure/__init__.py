"""Structures of replies: compiled to grammars over a vocabulary, and followed token by token."""
