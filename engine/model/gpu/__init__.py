"""The forward pass on a GPU: the program as launches, its graphs, and a runner of depth 2.

The graph of `engine.model.program` becomes launches, by a function for each kind of operation
(`LAUNCHES`), verified operation by operation when they are made, as on a processor. Products are
cuBLAS's, with the residual added in place, or for few rows a kernel of ours, where that is faster.
The rest are Triton kernels (`engine.triton`): norms, the rotation with the store of keys and
values, attention, gate with up, and elementwise operations. A layer of Llama's kind is nine
launches. A model that cannot be read runs module by module with Triton's attention, one step at a
time, and the log says so. If a kernel is wrong, the model is loaded again and torch launches that
operation; if one does not compile, or attention is wrong, torch alone computes the model. If the
kernels that choose tokens do not compile, torch chooses them, one step at a time.

- `StepInputs` lays out everything that the launches of a step read in one run of words: token ids,
  positions, the blocks that tables grow by, work lists, and each row's sampling. So a step is one
  copy to the device, one graph, and one copy back. Block tables and the last tokens stay on the
  device.
- `ladder` chooses the sizes for which there are CUDA graphs: decodes up to the largest batch, and
  steps with prompts of up to 1,024 tokens. A step is padded to the next size. Larger ones are
  launched kernel by kernel.
- `GpuRunner` has depth 2. The host packs a step while the device computes the one before. A token
  that is not known yet is in the next step's ids as its batch index, and the embedding finds it on
  the device. A batch index has a generation, since a token may come after its sequence was released
  and another has the index.
- Where torch's own grouped products do not wait for the host, in bfloat16 on sm_90 and sm_100,
  experts stay modules that torch runs between segments of the program, until both have been
  measured.
- With few rows a product takes as long as its matrix takes to be read. `choosing` measures our
  kernel beside cuBLAS at start on the model's own matrices, for each shape and for 1, 2, 4, 8 and
  16 rows. Steps use it where it gives the same and saves 3 %; the log has the table.
- `overlap_pays` decodes at start with and without overlapping launches, in turns. Launches overlap
  where tokens and logits are the same to the bit and steps are faster; the log has both times.
- `DeviceSampler` chooses tokens in two kernels within the graph, without a sort. Sums of weights
  are sums of integers, so that a row's token does not depend on the batch around it.
  Log-probabilities are computed beside it for rows that ask, and read a step later.
- A step is started before the tokens of the one before are known, and so before its structures'
  masks can be. Its graph leaves out those rows as it leaves out padding. When the host has read the
  tokens it computes the masks while the device runs the graph, and two launches after the graph
  choose for these rows (`GpuRunner._bind`). Steps without structures are one graph, whose kernels
  are unchanged (`MASKED` is a constant of `score`).
- A step with log-probabilities of prompts is launched without a graph, slice by slice; they are
  read with its tokens.
- Victims are swapped through pieces of 32 MiB on the stream of the steps.
- `sized` measures the memory of buffers, cuBLAS, the largest step and graphs over a pool of one
  block; the pool gets the rest. If that is too little, the error has all of these numbers.

This code was written without a GPU. docs/results.md says what was tried under Triton's interpreter
and compiler. `python -m benchmarks.gpu --short` tests the rest on a GPU in a quarter of an hour.
"""
