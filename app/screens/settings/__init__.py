"""The settings screen: the user's preferences, shown, changed and kept."""
