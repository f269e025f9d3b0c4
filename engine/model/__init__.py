"""From a name to logits and tokens: registry, loader, gate, memory plan, runner, sampler.

A step is one packed row: `input_ids` and `position_ids` of [1, T], no mask, and no cache object
unless the model keeps states. Any decoder of `transformers` whose attention goes through its
attention interface is served. Our attention is registered there under the name `batchdeck`: it
writes keys and values to their slots and attends through the block tables. Linear layers see all
tokens at once, attention sees each sequence alone (Orca's selective batching).

A load
------

A load makes one value from another (`loader`). A `Source` has the files as far as they are read
without the weights, a `Plan` the traced model and its memory; from these come the tested forward
pass, the runner with its pool, and the description for the host. Where latents are not the
attention's inputs, or kernels are wrong, the next attempt has another plan. The process that
encodes is started before torch is imported, and gets a GGUF file's tokenizer as soon as the header
is read.

Anyone may have made the folder. A file is read only if it is a regular one, after links, of at most
the size that its kind may have (`files`, `folder`; a `config.json` 4 MiB, a tokenizer's file 128
MiB). The tensors of a safetensors header must fill their file, each byte once (`checkpoint`). A
`pytorch_model.bin` holds a program that makes tensors; it is read and never run (`pickled`): its
names, shapes and offsets are followed on plain data, any other call is refused, and the weights are
read from their offsets. The sizes of a configuration must be ones that its weights can have
(`sizes`), before transformers builds a model from them. Errors of transformers, tokenizers or
Jinja, panics in Rust included, end the load with a sentence that names the folder and the stage
(`blame`). Errors show unprintable text as Python's `repr` does.

Memory is divided before the weights are read (`memory`). The weights, the largest step and the pool
have to fit; before there is a pool, so have the weights and the memory that loading takes beside
them. Both depend on what will compute the model (`footprint`). If torch computes the model after
all, memory is divided anew. `tui models` estimates weights and cache by the registry's entry
(`estimate`), without torch, for models that are not here; a model that is here is traced.

The gate
--------

A model that would be computed wrongly is refused before its weights are read (`gate`, `trace`):
classes without support for the attention interface, layers that attend neither fully nor in a
window, states that no cache is asked for, and encoders. A trace has no values: a module that looks
at some, as mixtures of experts do that loop over the chosen ones, returns its input's likeness
there, unless it attends (`valueless`). LongRoPE and dynamic RoPE, which look at the longest
position of a row, are frozen to the choice of a row that fills the context; a model whose rotation
still depends on the row is refused.

Once the weights are read, the paged path must agree with the model's own attention (`selftest`).
The loaded weights run three short steps of two sequences (`script`), since a pass over 8 billion
parameters takes 0.7 s. A small random model of the class (`miniature`) runs 19 steps: a prompt of
many windows at once and in odd chunks, decodes, all of these side by side, a prefix taken over with
its state, and slots that others had. Its windows have 6 tokens. The error names the first of these
situations that is wrong. If torch alone computes it right, the model is loaded again and torch
computes it.

The findings are kept for one file, processor and build in the cache folder (`verdicts`), and the
graph beside them if every matrix in it is a stored weight (`engine.model.program.saved`). The next
load builds no model; the program has to give the recorded logits again, or all checks are made.
Packed weights are kept too (`packed`): one file in the arena's order, with a checksum for each,
which the next load maps. Once the model serves, a thread copies the file to huge pages, 8 MiB at a
time, and `mremap` puts these in the file's place while kernels read: huge pages are read faster,
and later changes of the file no longer matter. Where no graph is kept (modules that torch runs,
states, experts that transformers merges, formats other than GGUF and plain safetensors, and
`--quantize`), the model is read again, and the operations of the program are compared with the
model's own numbers.

Latents
-------

Some models hand transformers' cache latents, from which keys and values of all heads are made later
(MLA; `latents`). Those latents are stored: 1,152 bytes a token and layer of GLM-4.7-Flash, in place
of 20,480. The trace sees that a layer hands its cache one head and attends to many. One token with
unit latents yields the matrices of the expansion, and random latents show whether it is linear, for
each token alone. If not, the log says so, and the model is planned and loaded with the attention's
own inputs. Attention is to the latents themselves, as one head of all queries: queries are
multiplied with one matrix before it, and its output with the other
(`engine.model.attention.latent`; DeepSeek-V2, arXiv 2405.04434, section 2.1.2). Values are a part
of their keys and not stored again. The weights of the modules that made keys and values are
released. On a processor these models are programs, too: the products of heads (`PerHead`) and the
join of a latent's two parts (`Beside`) are calls of a kernel. With states beside them (Kimi Linear)
they run module by module, and so they do on a GPU, with attention by torch, because the Triton
kernels take heads of at most 256 numbers.

Models with images or sound
---------------------------

The text of such models is served. Where a folder holds several models, such as one that thinks and
one that speaks, it is the one that has the text part (`language_part`). `find_class` takes
transformers' class of text alone where there is one, else the class of the whole, which gets token
ids only. The trace notes the modules and parameters that this uses, and the others are left out of
the class (`text_part`): towers and projectors are never built, read or counted, and neither are
layers that text passes by. So nothing depends on their names. Where a position has several axes
(M-RoPE), all are the same in text. Requests with anything but text are refused.

Steps
-----

`Masks` follows the replies with structures. A thread computes the tokens that one allows next as
soon as its last token is known, without the interpreter's lock, beside the commit, the next plan
and the forward pass; `PhaseTimes.mask` has the time that the step still waits. A preempted sequence
is followed anew, through its output.

Log-probabilities of a prompt (`prompts`) need the logits of all its tokens: 311 MB for a chunk of
512 tokens and 152,000 words. So such a step computes its logits 64 tokens at a time (39 MB), in the
memory of the sampling rows' logits, which come last; footprints count at least 64 rows. A program
runs its operations after the last attention again for each slice, and of other models the class
around the base model runs again. Steps without such rows run as ever.

`python -m benchmarks.coverage` shows which models are served: a tiny random one of each type that
transformers has, of each type with towers and in each form of checkpoints, goes through the loader
and the core, and its tokens are compared with `generate`.
"""
