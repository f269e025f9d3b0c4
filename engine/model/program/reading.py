"""Reading: what is known of a recorded pass, for the functions that recognise operations in it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace

from torch import Tensor, nn

from engine.model.program.capture import Call, Capture
from engine.model.program.graph import Operation, Value, View
from engine.model.program.provenance import Provenance, address_of
from engine.model.program.rotation import Rotation, Rotations


class Reading:
    """The state of a reading, which advances from call to call.

    Args:
        max_positions: length of the tables of rotations.

    Attributes:
        recorded: the pass.
        with_experts: whether experts can be operations; else they are unreadable.
        provenance: the operations and values read so far.
        rotations: determines the rotations of queries and keys.
        varying: addresses of tensors that depend on the step; all others are constants.
        stored: the layer that first used some keys and values, by their memory.
        latents: the rotations of latents' queries and keys, by the `id` of their value.
        looked_up: the id that an embedding looks up for each token, by the address of its ids.
    """

    def __init__(self, recorded: Capture, max_positions: int, with_experts: bool) -> None:
        self.recorded = recorded
        self.with_experts = with_experts
        self.provenance = Provenance()
        self.rotations = Rotations(self.provenance, recorded.position_ids, max_positions)
        self.varying = {
            address_of(tensor)
            for tensor in (recorded.input_ids, recorded.position_ids, recorded.last_tokens)
        }
        self.stored: dict[Hashable, int] = {}
        self.latents: dict[int, Rotation | None] = {}
        self.looked_up: dict[int, Tensor] = {}

    def varies(self, tensor: Tensor) -> bool:
        """Whether a tensor depends on the step."""
        return address_of(tensor) in self.varying

    def module_on(self, call: Call) -> tuple[nn.Module | None, list[View]]:
        """The module that a call runs, with the matrices that it is given; None for other calls.

        Raises:
            UnreadableError: it is given something else.
        """
        if not isinstance(call.target, nn.Module):
            return None, []
        return call.target, [self.provenance.view(one) for one in call.inputs]

    def keep_latent(self, value: Value, rotation: Rotation | None, begin: int) -> None:
        """Keep the rotation of a latent's query or key for attention.

        Args:
            begin: the first rotated column of a head.
        """
        self.latents[id(value)] = rotation and replace(rotation, begin=begin)


# Recognises the calls that compute an operation. It gets the call, the tensor that the call makes
# or changes, and the value of that tensor, and returns the operations that compute the value; None
# if others are to be tried. It raises UnreadableError if no other can read the call.
Reader = Callable[[Reading, Call, Tensor, Value], list[Operation] | None]


def weight_and_bias(module: nn.Module) -> tuple[Tensor | None, Tensor | None] | None:
    """A module's parameters of these names; None if it has others."""
    parameters = dict(module.named_parameters(recurse=False))
    if not parameters.keys() <= {"weight", "bias"}:
        return None
    weight, bias = (parameters.get(name) for name in ("weight", "bias"))
    return weight if weight is None else weight.detach(), bias if bias is None else bias.detach()
