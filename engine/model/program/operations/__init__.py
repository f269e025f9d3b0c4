"""The operations that have kernels of ours, a module each.

A module has an operation's definition, how its weights are packed, its instructions and its
computation by torch, and the function that recognises it in a recorded pass.
"""

from __future__ import annotations

from engine.model.program.operations.attend import Attend, read_attend
from engine.model.program.operations.convolve import Convolve, read_convolve
from engine.model.program.operations.elementwise import (
    Beside,
    Elementwise,
    read_beside,
    read_elementwise,
)
from engine.model.program.operations.embed import Embed, read_embed
from engine.model.program.operations.experts import Experts, read_experts
from engine.model.program.operations.gather import Gather, read_gather
from engine.model.program.operations.kerneled import Kerneled
from engine.model.program.operations.linear import Gated, Linear, read_linear
from engine.model.program.operations.norm import Norm, read_norm
from engine.model.program.operations.per_head import PerHead, read_per_head
from engine.model.program.operations.recur import Recur, read_recur
from engine.model.program.reading import Reader

OPERATIONS: tuple[type[Kerneled], ...] = (
    Attend,
    Beside,
    Convolve,
    Elementwise,
    Embed,
    Experts,
    Gated,
    Gather,
    Linear,
    Norm,
    PerHead,
    Recur,
)

# They are tried in this order. From `read_linear` on, each tensor that a module is given must be a
# matrix that was read.
READERS: tuple[Reader, ...] = (
    read_attend,
    read_beside,
    read_per_head,
    read_convolve,
    read_recur,
    read_experts,
    read_embed,
    read_linear,
    read_gather,
    read_elementwise,
    read_norm,
)
