"""Chats above the store: their sessions, histories, branches and forks, and files of chats.

The branch of a chat that ends in `Conversation.leaf` is on view and read from the store
(`ShownBranch`). Another reply, an edit, and a message of another program in the same chat all make
branches, so that nothing disappears. A chat keeps its number, and with it its letter and colour,
for as long as it exists. A `ChatSession` connects one chat with the engine; a reply is continued
where it ended (`ResumedReply`) or forked into a chat of its own, from the token ids that are kept
with each reply, so that the cache has them.
"""
