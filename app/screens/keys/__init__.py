"""Keys: what is bound where, the bar that shows it, and the help that tells it."""
