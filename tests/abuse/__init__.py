"""Clients that ask for too much, all at once, and what the others feel of them."""
