"""The demonstration: a scripted crowd of users, with captions."""
