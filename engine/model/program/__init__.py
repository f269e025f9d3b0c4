"""A model's forward pass as a program of native kernels.

`capture` records one pass, `read` finds out what each call computes, `fuse` merges what one kernel
can do, `build` lays it out in memory, and `verify` compares it with the recorded pass. `forward`
goes through all of this, and runs the program.
"""
