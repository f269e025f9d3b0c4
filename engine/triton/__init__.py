"""The Triton kernels of a GPU: attention over the paged cache, in pieces of similar size, and the
operations between the products.

For each step `work` cuts the attention of all rows, decodes and chunks alike, into pieces of
similar size: a tile of queries and a range of keys. A long context is divided among many programs,
and only a window's keys are read. The query heads that share a key head are rows of one tile, so
that each key is read once. A table by card, head and type has the size of tiles, the number of keys
read at once and the number of turns under way (`ways`); `python -m benchmarks.gpu.tiles` measures
its lines anew. A turn finds the blocks of the next one's keys before it asks for its own, so that
the copies of two turns run beside the products.

`product` computes up to 16 rows in one launch with the norm before them and the operations after:
bias, activation, gate with up, residual. On sm_90 and sm_100, with torch 2.12 or newer, kernels can
overlap (`overlap`): each lets the next one start at once, reads weights and biases, or has the
cache fetch them, and only then waits for the end of the one before.

Experts are five launches (`experts`): rows are routed and sorted by their experts, multiplied with
gate and up, multiplied with down and weighed, and added up in the order of a row's experts. Padding
has no expert, and nothing asks the host how many rows an expert has, so that graphs hold them.
"""
