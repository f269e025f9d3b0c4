"""Checks of a model before it serves, and their verdicts.

A model that would be computed wrongly is refused before its weights are read (`gate`,
`engine.model.tracing.trace`): classes without support for the attention interface, layers that
attend neither fully nor in a window, states that no cache is asked for, and encoders. A trace has
no values: a module that looks at some, as mixtures of experts do that loop over the chosen ones,
returns its input's likeness there, unless it attends (`engine.model.tracing.valueless`). LongRoPE
and dynamic RoPE, which look at the longest position of a row, are frozen to the choice of a row
that fills the context; a model whose rotation still depends on the row is refused.

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
"""
