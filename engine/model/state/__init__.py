"""The states that a sequence has beside keys and values: convolutions, delta nets, Mamba.

The modules ask transformers' cache for such states, and so they get a cache of ours. `probe` runs
nine tokens to find out which modules request states; no architecture has code of its own. Such a
module is called once for each group of equally long rows, with the states of those sequences copied
from their slots and back; all decodes are one group. Everything else computes the packed row as
usual. Where a chunk that continues from a state gives other results than the whole prompt (Mamba 1
of transformers restarts), the tokens after the first chunk are computed one by one, and the log
says so. A sequence's slot is its batch index. The snapshots follow the slots, and are accounted for
in `engine.cache.snapshots`.

On a processor these models are programs too, as far as they can be read
(`engine.model.program.operations`): a causal convolution and a recurrence are instructions, whose
states lie in the slots and change in place, whatever the order of the rows. A module that cannot be
read (Mamba 1) runs between two segments of the program, group by group. On a GPU these models run
module by module, one step at a time.
"""
