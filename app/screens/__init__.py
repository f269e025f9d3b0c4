"""The interface: the application, its screens, and what feeds the panels."""
