"""Checkpoints whose weights are quantized on disk, read as plain ones.

Each format's file decides which stored tensors make a weight, and calls the format's own library to
make it. `methods` finds the format of a checkpoint.
"""
