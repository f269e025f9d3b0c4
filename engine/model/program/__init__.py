"""What a model's forward pass computes, as a graph, and that as a program of native kernels.

`capture` records one pass, `read` determines what each call computes, and `fuse` merges operations
into one kernel; `find` runs the first two. `build` lays the graph out in memory, and `verify`
compares a program with the recorded pass. `forward` runs all of these, and then the program.
`engine.model.gpu` makes another program of the same graph.
"""
