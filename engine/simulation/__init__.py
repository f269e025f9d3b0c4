"""Devices, model shapes and cost models, and a runner that costs time on a virtual clock."""
