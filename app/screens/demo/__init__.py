"""The demonstration: a scripted crowd of users, and captions that say what is seen."""
