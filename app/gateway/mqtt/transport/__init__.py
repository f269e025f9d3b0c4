"""Brokers: where they are, the connection to one, and one of our own to try things out with."""
