"""The Triton kernels of a GPU: attention over the paged cache, in pieces of similar size, and what
stands between the products.
"""
