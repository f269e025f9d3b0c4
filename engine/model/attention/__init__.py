"""Attention over paged keys and values: one contract, a backend for each kind of device."""
