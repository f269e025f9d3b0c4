"""Attention over paged keys and values: one interface, with a backend for each kind of device."""
