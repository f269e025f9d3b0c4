"""The one screen, and what the user can do on it: a class for each kind of deed."""
