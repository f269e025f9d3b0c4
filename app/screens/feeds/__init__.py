"""Readings of the engine, the gateways and the screen itself, and how often they are taken."""
