"""Loading: source, memory plan, weights and packed weights become a runner.

A load makes one value from another (`loader`). A `Source` has the files as far as they are read
without the weights, a `Plan` the traced model and its memory; from these come the tested forward
pass, the runner with its pool, and the description for the host. Where latents are not the
attention's inputs, or kernels are wrong, the next attempt has another plan. The process that
encodes is started before torch is imported, and gets a GGUF file's tokenizer as soon as the header
is read.

Packed weights are kept too (`packed`): one file in the arena's order, with a checksum for each,
which the next load maps. Once the model serves, a thread copies the file to huge pages, 8 MiB at a
time, and `mremap` puts these in the file's place while kernels read: huge pages are read faster,
and later changes of the file no longer matter. Where no graph is kept (modules that torch runs,
states, experts that transformers merges, formats other than GGUF and plain safetensors, and
`--quantize`), the model is read again, and the operations of the program are compared with the
model's own numbers.
"""
