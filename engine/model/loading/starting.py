"""Starting: start values of the batch knobs, by a GPU's speed and memory."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from engine.api.config import EngineConfig
from engine.api.errors import cause_of
from engine.api.knobs import Knobs
from engine.batch.plan import Row, StepPlan
from engine.batch.shape import ModelShape
from engine.model.gpu.stream import stream_on
from engine.simulation.cost import Roofline
from engine.simulation.devices import Device

logger = logging.getLogger(__name__)

# Tokens of a sequence; the pool must hold this many for each one in the batch.
_CONTEXT = 1024
# A full step may take this share of the target for the time between two tokens, because it is
# computed, not measured, and contexts may be longer.
_SHARE = 0.5
# Measured on a GPU: a square product of this side, and a copy of more bytes than its cache holds.
_SIDE, _COPIED_BYTES = 4096, 128 << 20
_TIMES = 5
# The products of a model are smaller.
_MATMUL_EFFICIENCY = 0.8


@dataclass(frozen=True, slots=True)
class Start:
    """The knobs' start values.

    Attributes:
        notes: reasons for start values that depend on the device, by name.
    """

    knobs: Knobs
    notes: Mapping[str, str] = field(default_factory=dict)


def measured(
    device: torch.device, dtype: torch.dtype, *, side: int = _SIDE, copied: int = _COPIED_BYTES
) -> Device | None:
    """A GPU with its measured rates; None if they cannot be measured."""
    stream = stream_on(device)
    try:
        a, b, product = (torch.ones(side, side, dtype=dtype, device=device) for _ in range(3))
        source, target = (torch.zeros(copied, dtype=torch.int8, device=device) for _ in range(2))
        multiplying, copying = (
            min(stream.enqueue(work).wait() for _ in range(_TIMES))
            for work in (lambda: torch.mm(a, b, out=product), lambda: target.copy_(source))
        )
    except RuntimeError as error:
        logger.info("what %s computes was not measured: %s", device, cause_of(error))
        return None
    return Device(
        name=str(device),
        peak_flops=2 * side**3 / multiplying,
        peak_bandwidth=2 * copied / copying,
        memory=1.0,  # the pool is already allocated
        matmul_efficiency=_MATMUL_EFFICIENCY,
        bandwidth_efficiency=1.0,
    )


def starting_knobs(envelope: EngineConfig, shape: ModelShape, gpu: Device | None) -> Start:
    """The defaults within an envelope. On a GPU, as many more sequences and tokens as fit its
    memory and take half the target for the time between two tokens.

    Args:
        gpu: the measured GPU; None for a host, or without measurement.
    """
    knobs = Knobs()
    seqs = min(knobs.max_num_seqs, envelope.max_num_seqs)
    tokens = min(max(knobs.max_num_batched_tokens, seqs), envelope.max_num_batched_tokens)
    notes: dict[str, str] = {}
    if gpu is not None:
        cost = _Cost(gpu, shape, min(_CONTEXT, envelope.max_model_len))
        most = knobs.tpot_target_ms / 1000 * _SHARE
        while seqs < envelope.max_num_seqs:
            more = min(2 * seqs, envelope.max_num_seqs)
            room = envelope.num_blocks // envelope.blocks_for(cost.context)
            if more > room or cost.seconds(more, more) > most:
                break
            seqs = more
        tokens = max(tokens, seqs)
        while tokens < envelope.max_num_batched_tokens:
            more = min(2 * tokens, envelope.max_num_batched_tokens)
            if cost.seconds(seqs, more) > most:
                break
            tokens = more
        for name, value in (("max_num_seqs", seqs), ("max_num_batched_tokens", tokens)):
            ms = cost.seconds(seqs, value) * 1000
            kind = "tokens" if name == "max_num_batched_tokens" else "decodes"
            notes[name] = f"by this GPU, where a step of {value:,} {kind} takes about {ms:.0f} ms"
    return Start(replace(knobs, max_num_seqs=seqs, max_num_batched_tokens=tokens), notes)


class _Cost:
    """Costs of a model's steps on a GPU, by the roofline.

    Args:
        context: context tokens of each decoding sequence.
    """

    def __init__(self, gpu: Device, shape: ModelShape, context: int) -> None:
        self.context = context
        self._roofline = Roofline(gpu, shape)
        # The roofline reads one token's experts; many tokens choose all of them.
        head = shape.hidden_size * shape.vocab_size
        experts = shape.weight_bytes - (shape.num_active_params + head) * shape.dtype_bytes
        self._experts_seconds = max(experts, 0) / gpu.bandwidth

    def seconds(self, decodes: int, tokens: int) -> float:
        """Seconds of a step with this many decodes, filled to this many tokens by a prompt."""
        decode = Row(0, self.context - 1, 1, (), True, False)
        prompt = Row(0, 0, tokens - decodes, (), True, True)
        rows = (decode,) * decodes + ((prompt,) if tokens > decodes else ())
        return self._roofline.seconds(StepPlan(1, rows)) + self._experts_seconds
