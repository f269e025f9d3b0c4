"""Models by name: the registry, and where their files are fetched from."""
