"""The operations that have kernels of ours, a module each."""

from __future__ import annotations

from engine.model.program.operations.attend import Attend
from engine.model.program.operations.convolve import Convolve
from engine.model.program.operations.elementwise import Beside, Elementwise
from engine.model.program.operations.embed import Embed
from engine.model.program.operations.experts import Experts
from engine.model.program.operations.gather import Gather
from engine.model.program.operations.kerneled import Kerneled
from engine.model.program.operations.linear import Gated, Linear
from engine.model.program.operations.norm import Norm
from engine.model.program.operations.per_head import PerHead
from engine.model.program.operations.recur import Recur

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
