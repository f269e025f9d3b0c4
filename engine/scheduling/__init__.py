"""Decides how many tokens each request gets in a step: scheduler, composer, queue orders, groups.

A policy decides who gets how many tokens in a step by asking the `StepComposer`, which alone gives
blocks, slots and budget, preempts, and says why a request waits. docs/policies.md teaches the
policies. Independent of the policy are the order of the queue (`queue`, `orders`, `shares`),
the choice of whom to preempt (the knob `victim`), and how (`swaps`); requests that share blocks
with a live one (`forks`), and snapshots of states (`states`).

Unless it is preempted, a request keeps to its end what it got at admission, even if the policy
changes: the blocks reserved for it (`orca`, `static`, `dynamic`) and its group (`groups`), whose
members keep their slots and blocks until the last one ends. So policies can be switched between any
two steps. If a policy raises, its plan so far is carried out, and the knob goes back to
`stall_free` with the reason in its history.

A request is admitted if the pool has the blocks of its whole prompt, besides the watermark and the
blocks promised to half-computed prompts. A preempted request loses its slot and its blocks and
returns to the queue, with its tokens and its arrival. Under the orders `fcfs` and `priority`, its
arrival and priority decide its place there; under `shortest` and `fair` it comes before all
requests that were never preempted.

Its tokens are computed again as one prompt, or its blocks are swapped out to a second pool in host
memory. A swapped-out request keeps `num_computed_tokens` and continues from there once it is
admitted again; blocks that a prefix hit finds are not copied back. Plans are carried out in the
order in which they were made, so nothing waits for a copy: the plan that copies a victim's blocks
out may allocate them to others (`StepPlan.swaps_out` comes first), and the plan after the one that
copies them back may reuse the host blocks. A model of step time, in which copied bytes are work
like tokens, says which way is cheaper (`swap_cost`).
"""
