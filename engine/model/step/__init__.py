"""A step beside the forward pass: masks, sampling and log-probabilities.

`Masks` follows the replies with structures. A thread computes the tokens that one allows next as
soon as its last token is known, without the interpreter's lock, beside the commit, the next plan
and the forward pass; `PhaseTimes.mask` has the time that the step still waits. A preempted sequence
is followed anew, through its output.

Log-probabilities of a prompt (`prompts`) need the logits of all its tokens: 311 MB for a chunk of
512 tokens and 152,000 words. So such a step computes its logits 64 tokens at a time (39 MB), in the
memory of the sampling rows' logits, which come last; footprints count at least 64 rows. A program
runs its operations after the last attention again for each slice, and of other models the class
around the base model runs again. Steps without such rows run as ever.
"""
