"""The SQLite store, as plain data: chats, the journal of requests, files and batches.

A chat is a tree of messages (`Tree`): the branches beside the one on view are known by ids alone
(`Branches`). A deleted chat stays for an hour, for the undo.

The word index for `Search` is a file of its own, written over a connection of its own: a search
first brings it up to date, a limited number of messages at a time, between which chats are saved.
It is made anew if it is lost, or of another version.

A process holds a `Lease` while it lives, and the journal says under which lease each request was
accepted, so that another process can adopt the requests of a dead one. A file of requests is rows
of lines, filled and read in parts of 256 KiB. An answer is a line of a file, too, with the number
of the line that it answers: the unanswered lines are those whose number is in neither file of
answers, whatever has crashed, and one statement ensures that no line has two. The permitted changes
of a batch's status are a table (`FOLLOWS`).
"""
