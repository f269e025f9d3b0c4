"""From a name to logits and tokens: registry, loader, gate, memory plan, runner, sampler.

A step is one packed row: `input_ids` and `position_ids` of [1, T], no mask, and no cache object
unless the model keeps states. Any decoder of `transformers` whose attention goes through its
attention interface is served. Our attention is registered there under the name `batchdeck`: it
writes keys and values to their slots and attends through the block tables. Linear layers see all
tokens at once, attention sees each sequence alone (Orca's selective batching).

A model is found by name (`catalog`), its files are read (`files`), its code is traced (`tracing`)
and becomes a program (`program`, `gpu`), which is checked (`checks`) and run (`running`) step by
step (`step`, `attention`, `state`). `loading` does all of this in order, within the memory that the
machine has (`machine`). Imports between these packages run one way, from `loading` down to `files`.

`python -m benchmarks.coverage` shows which models are served: a tiny random one of each type that
transformers has, of each type with towers and in each form of checkpoints, goes through the loader
and the core, and its tokens are compared with `generate`.
"""
