"""The SQLite store, as plain data: chats, the journal of requests, files and batches."""
