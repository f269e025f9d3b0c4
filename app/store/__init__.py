"""The SQLite store, as plain data: chats, the journal of requests, files and batches.

A chat is a tree of messages (`Tree`): of branches that are not on view only the ids are loaded
(`Branches`). A deleted chat stays for an hour, so that the deletion can be undone.

The word index for `Search` is a file of its own, written over a connection of its own: a search
first brings it up to date, a limited number of messages at a time, between which chats are saved.
It is rebuilt if it is lost, or of another version.

A process holds a `Lease` while it lives, and the journal says under which lease each request was
accepted, so that another process can adopt the requests of a dead one. A file of requests is rows
of lines, filled and read in parts of 256 KiB. An answer is a line of a file, too, with the number
of the line that it answers: the unanswered lines are those whose number is in neither file of
answers, even after a crash, and a single SQL statement ensures that no line gets two answers. The
permitted changes of a batch's status are a table (`FOLLOWS`).
"""
