"""Dialogs: small screens that ask for one thing."""
