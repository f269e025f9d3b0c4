"""The machine: devices, their memory, and how much of it a model gets.

Memory is divided before the weights are read (`memory`). The weights, the largest step and the pool
have to fit; before there is a pool, so have the weights and the memory that loading takes beside
them. Both depend on what will compute the model (`engine.model.loading.footprint`). If torch
computes the model after all, memory is divided anew. `tui models` estimates weights and cache by
the registry's entry (`estimate`), without torch, for models that are not here; a model that is here
is traced.
"""
