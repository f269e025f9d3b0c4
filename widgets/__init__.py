"""Views: each takes data and paints it."""
