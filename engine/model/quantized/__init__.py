"""Checkpoints whose weights are quantized on disk, read as plain ones.

A format's file says which stored tensors make a weight, and lets the format's own library make it
of them. `methods` finds the format of a checkpoint.
"""
