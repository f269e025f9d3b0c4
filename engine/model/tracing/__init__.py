"""From a model's code to its traced operations: rotations, latents, and what is left out.

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
join of a latent's two parts (`Beside`) are calls of a kernel. On a GPU they run module by module,
with attention by torch, because the Triton kernels take heads of at most 256 numbers.

Models with images or sound
---------------------------

The text of such models is served. Where a folder holds several models, such as one that thinks and
one that speaks, it is the one that has the text part (`language_part`). `find_class` takes
transformers' class of text alone where there is one, else the class of the whole, which gets token
ids only. The trace notes the modules and parameters that this uses, and the others are left out of
the class (`text_part`): towers and projectors are never built, read or counted, and neither are
layers that text passes by. So nothing depends on their names. Where a position has several axes
(M-RoPE), all are the same in text. Requests with anything but text are refused.
"""
