"""What a model's forward pass computes, as a graph, and that as a program of native kernels.

`capture` records one pass, `read` finds out what each call computes, and `fuse` merges what one
kernel can do; `find` goes through the first two. `build` lays the graph out in memory, and
`verify` compares a program with the recorded pass. `forward` goes through all of this, and runs
the program. `engine.model.gpu` makes another program of the same graph.
"""
