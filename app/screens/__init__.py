"""The interface: the application, its screens, and the feeds of the panels."""
