"""What the rest of the program may ask of an engine, and the plain data it answers in."""
