"""Views of the engine: the panels of the dashboard, and what they are made of."""
