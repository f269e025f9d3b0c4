"""What can be set, and what flags, environment and file state of it."""
