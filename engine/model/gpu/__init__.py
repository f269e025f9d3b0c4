"""The forward pass on a GPU: the program as launches, its graphs, and a runner of depth 2."""
