"""The settings screen: what a user prefers of the interface, shown, changed and kept."""
