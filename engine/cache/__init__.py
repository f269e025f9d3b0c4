"""The paged KV cache: block pool, prefix index, block tables, and the tensors behind them.

The cache consists of blocks of 16 tokens. A block is free, cached (nobody holds it, but its content
can be found) or used; tests check after every step that `free + cached + used == total`. Some used
blocks are shared, some are reserved (allocated, not yet to be filled); some cached blocks are
pinned. Full blocks are published under a chained SHA-256 of their tokens, rooted in model and
dtype, after the forward pass that filled them. The blocks of a hit are held before any block is
allocated. A hit ends before the last token, which must run to give logits. Eviction takes the
cached block that was released longest ago; a table is released in reverse, so that its tail goes
first. Blocks freed while a plan in flight uses them wait for that plan (`manager`).

A fork (`fork_of`) starts from a live request's tokens as far as both agree. It shares the full
blocks, and copies the last, partly filled one in the plan that admits it (`StepPlan.copies`), since
it is written at once. Only tokens whose step has ended are taken over (`engine.scheduling.forks`).

Of models that keep states, `snapshots` has the books of saved states: a prefix hit ends where there
is one. So a prompt is cut at its last full block, chunks end with a block, and a plan says which
states are saved and restored (`engine.scheduling.states`). A prompt is also cut where a pinned
prefix ends, and the snapshot there is pinned with the blocks; one is always left unpinned. A
snapshot is found once its step has ended. Victims are computed again from their last snapshot, and
a fork starts from one.

Where layers differ in the number or the size of their heads, the pool has a part for each kind
(`parts`). A block is the same one in all parts, so there is one block table. A layer that attends
to keys and values of an earlier layer (Gemma 3n, Gemma 4) shares that layer's place and stores
nothing.

Swapped-out blocks lie in a pool in host memory, whose accounting is checked in the same way
(`host`). On a GPU that pool is pinned, and its copies run in the stream of the steps, in pieces of
32 MiB: a block's keys and values of all layers are one row, and neighbouring rows are one copy
(`host_store`).
"""
