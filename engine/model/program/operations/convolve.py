"""Convolve: a causal convolution of each column."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from engine.model.program.activations import ACTIVATIONS
from engine.model.program.agree import agree
from engine.model.program.capture import Call, KernelCall
from engine.model.program.graph import Operation, Value, View
from engine.model.program.operations.kerneled import Emitter, Kerneled, Numbers, TorchStep
from engine.model.program.pack import Product
from engine.model.program.reading import Reading

# Most taps of a convolution's kernel.
_MOST_TAPS = 8


@dataclass(eq=False)
class Convolve(Kerneled):
    """Activation of a causal convolution of each column with its own weights.

    A sequence's state is the last inputs of each column.

    Attributes:
        weight: [taps, columns] float32, the newest token's tap last.
        bias: [columns] float32.
    """

    out: Value
    x: View
    weight: Tensor
    bias: Tensor | None
    activation: str

    def emit(self, to: Emitter, *products: Product) -> None:
        """See `Kerneled.emit`."""
        taps, columns = self.weight.shape
        to.program.convolve(
            to.place_of(self.out),
            to.place(self.x),
            self.weight,
            self.bias,
            self.activation,
            to.state(self, taps - 1, columns, dtype=to.dtype),
        )

    def run(self, of: Numbers, step: TorchStep) -> Tensor:
        """See `Kerneled.run`."""
        x, before = of(self.x), len(self.weight) - 1
        states = step.state(self, before, x.shape[1], dtype=x.dtype)
        out = []
        for tokens, slot, is_new in step.sequences():
            state = states[slot]
            if is_new:
                state.zero_()
            row = torch.cat((state, x[tokens]))
            made = convolve(row, self.weight, self.bias)[before:]
            out.append(ACTIVATIONS[self.activation](made))
            state.copy_(row[len(row) - before :])
        return torch.cat(out)


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A causal convolution of each column: [T, columns] float64.

    Args:
        x: [T, columns].
        weight: [taps, columns], the newest token's tap last.
        bias: [columns].
    """
    padded = F.pad(x.double().T, (len(weight) - 1, 0))
    taps = weight.double().T[:, None]
    return F.conv1d(padded[None], taps, None if bias is None else bias.double(), groups=len(taps))[
        0
    ].T


def read_convolve(
    reading: Reading, call: Call, output: Tensor, out: Value
) -> list[Operation] | None:
    """The convolution that reproduces the recorded numbers of a function.

    Its arguments are those of causal-conv1d: x [1, columns, T] or [1, T, columns], `weight`
    [columns, taps], and maybe `bias` [columns] and the name of an `activation`.
    """
    if not isinstance(call.target, KernelCall):
        return None
    arguments = call.target.arguments
    weight, bias = arguments.get("weight"), arguments.get("bias")
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        return None
    if len(weight) != out.width or not 2 <= weight.shape[1] <= _MOST_TAPS:
        return None
    x = reading.provenance.view(next(iter(arguments.values())))
    if x.columns != out.width:
        return None
    taps = weight.detach().float().T.contiguous()
    bias = None if bias is None else bias.detach().float().contiguous()
    exact = convolve(x.reference, taps, bias)
    for name, function in ACTIVATIONS.items():
        if agree(function(exact), out.reference):
            return [Convolve(out, x, taps, bias, name)]
    return None
