"""The one screen, the table of commands on it, and the objects that carry them out."""
