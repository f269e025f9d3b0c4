"""A model's forward pass as a graph, and the graph as a program of native kernels.

On a processor, a step of a model in plain transformers code spends more time between the matrix
products than in them, and takes the interpreter's lock some hundred times, each time waiting for
the interface. So the forward pass becomes a program: a list of native kernels over memory laid out
beforehand, run in one call without the interpreter. `engine.model.gpu` makes another program of the
same graph.

- `capture` runs the loaded model once, on 23 tokens, and records its calls: modules that hold no
  other modules, functions of torch outside of them, and attention. The positions are spread over
  all served positions, so that an effect of long contexts, such as a scale, shows.
- `read` determines what each call computes. It knows no names of models or modules. It tries the
  readers of the operations (`operations.READERS`) in order, which share what is known of the pass
  so far (`reading`). The place of a tensor in memory shows which matrix it is. A product, a norm
  with its epsilon, an activation or a rotation is guessed from parameters and shapes, and the guess
  is kept if it gives the recorded numbers. A value that a function of torch changes in place counts
  as a new value from then on, at the same memory. Changes to token ids before their lookup are
  repeated with all ids: Gemma 4 looks up another id for a picture's token.
- A module that keeps states is recorded without any: over a whole sequence it computes a
  convolution or a recurrence, known by its numbers. The gated delta rule, Mamba 2 and linear
  attention with a decay are one instruction, which reads and writes the state of a head once a
  token.
- Columns of a product that a model picks or reorders (alternating heads of queries and gates, say)
  are a product of their own, with those rows of the matrix (`Rows`).
- `fuse` merges operations that one kernel can do together: gate, up and activation; product and
  residual; queries, keys and values in one product. A layer of Llama's kind becomes seven
  operations. After the last attention only the rows that sample are computed. Operations on all
  tokens come first and keep their results, so that the rest can run again for other tokens of the
  step.
- `build` packs the weights in huge pages (`arena`), releases the originals as it goes, and gives
  each value a buffer.
- `verify` runs operation after operation on the model's own recorded numbers. It collects those
  whose kernels differ by more than rounding explains, or do not take the model's values. The
  weights are then read again, because packing has released them, and torch computes these
  operations by their definitions (`by_torch`), between two segments of the program. The definitions
  are verified the same way; if one of them differs too, torch alone computes the whole model.

Torch repeats what cannot be read, between two segments of the program (`Opaque`): the smallest
module that holds it or, if each such module attends, the single call. A call is repeated as it was
recorded, with the rows of the step in place of the recorded ones (`replay`), and with the calls
before it whose results are no matrices, such as indices. It has to give the same numbers for some
of the recorded rows in another order, and for one of them alone (`opaque`). If it does not, its
rows depend on each other, and the whole model runs module by module, with native attention only.
So a family with a limit, a mean or a join takes no code of its own. The gate compares the result
with the model's own eager attention all the same. The model's card says which operations torch
computes, how often, why, and with which share of a step (`off_path`), or why there is no program at
all (`off_kernels`). Screen, page, `tui doctor --model NAME`, `/metrics`, log and plain program show
it.

A mixture of experts is two operations: the product that gives a router's logits, and the experts
(`operations.experts`). How logits choose experts and weigh them (`routing`), and how gate and up
are combined, is guessed likewise: softmax or sigmoid, corrections, groups, limits are tried until
they give the recorded choices and weights. Where logits are equal, a model may choose either
expert; the recorded ones are then moved to the next number, so that the kernels make the same
choice.

Quantized weights
-----------------

`quantize` reads the model as a program and quantizes the parameters of its products in place: the
model then holds the codes' values, rounded to its type, and is read, verified and compared like any
other. Only scales are kept beside it (`coded`), since a number and its scale give the code back
when the matrix is packed. So a kernel of quantized weights is right if it computes the same as the
model, but for the rounding of x.

A GGUF file's blocks become packed codes without a detour over floats. Until they are packed, a
parameter is a window of address space (`engine.model.files.compact`) that has numbers only while a
module computes with it, or while `read` tries a call; so a load takes the file's size in memory,
not that of the model in floats. Weights that are read side by side are one product if their blocks
are packed alike, and otherwise a product for each way of packing. A plain checkpoint is kept the
same way where torch has no instructions for bfloat16 (AVX2 alone): the model's own modules compute
in float32 then, and the kernels in bfloat16.

Any other quantized checkpoint stays packed if its numbers show how. `recognize` tests whether each
group of 16, 32 or 128 numbers of a product's weights lies on a lattice that has no more steps than
codes, but for the rounding to bfloat16, and takes the way with the fewest bytes. So no format needs
code of its own: whole numbers with scales, and zeros of 4 bits, are found (AWQ, GPTQ, AutoRound,
compressed-tensors; MXFP4 as 5 bits, NVFP4 as 6). FP8 and NF4 lie on no lattice, inputs in the order
of activations share no scales with their neighbours, and zeros of 8 bits are lost in rounding:
these are rounded to the nearest codes of 8 bits, a scale for each 32. `Origins` knows by the first
rows of the unpacked tensors which floats were stored as codes, whatever transformers has merged
since; stored floats stay floats.

The effect of quantizing is measured during the load (`engine.model.checks.loss`): the model's eager
logits of four chats before, and the program's after, decoded token by token. Of a checkpoint that
stays packed this shows the effect of activations of 15 bits, of one that is rounded that of both.
"""
