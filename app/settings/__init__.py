"""The settings, and their values from flags, environment and file."""
