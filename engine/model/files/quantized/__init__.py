"""Checkpoints whose weights are quantized on disk, read as plain ones.

A weight of such a checkpoint is several tensors: numbers of few bits, scales, zeros. Each format's
file decides by the headers alone which stored tensors make a weight, and calls the format's own
library to make it when transformers asks for it (`engine.model.files.stored`,
`engine.model.loading.weights`). `methods` finds the format of a checkpoint. So one weight at a time
is unpacked, experts are merged as from a plain checkpoint, and the rest of a load sees an ordinary
model. On a processor its codes are then found again in the numbers, whatever their format
(`engine.model.program.quantize`). The names of tensors say which are packed, not the lists in
`config.json`, because names of modules change between versions.

Three conversions are our own code. FP8 scales whose last block is cut are repeated for each row,
because transformers takes the quotient of the sides as a block's size. GPTQ's tensors are
transposed, because they are laid out like those of compressed-tensors, with rows and columns
exchanged (AutoRound's are packed as those of GPTQ or AWQ). The scales of ModelOpt, which
transformers does not read, are multiplied here.
"""
