"""What the screen knows of engine, gateway and itself, and how often it looks."""
