"""The Triton kernels: attention over the paged cache on a GPU, cut into pieces of similar size."""
