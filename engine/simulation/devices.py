"""Device: a processor's peak performance, and the share of it that a model reaches."""

from __future__ import annotations

from dataclasses import dataclass

from engine.api.errors import InvalidConfigError

_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A processor with its memory.

    Attributes:
        peak_flops: dense bfloat16 operations a second.
        peak_bandwidth: bytes a second between the processor and its memory.
        memory: bytes of its memory.
        peak_link: bytes a second to host memory, and back.
        matmul_efficiency: share of `peak_flops` that large matrix products reach.
        bandwidth_efficiency: share of `peak_bandwidth` at which weights and cache are read.
        link_efficiency: share of `peak_link` at which blocks are swapped.
        layer_overhead: seconds of each layer for launches and small operators, without arithmetic
            or memory traffic.
        step_overhead: seconds of each step outside its layers, for scheduling, inputs and sampling.

    Raises:
        InvalidConfigError: a value is outside its range; `param` names the field.
    """

    name: str
    peak_flops: float
    peak_bandwidth: float
    memory: float
    peak_link: float = 32e9
    matmul_efficiency: float = 0.7
    bandwidth_efficiency: float = 0.8
    link_efficiency: float = 0.8
    layer_overhead: float = 10e-6
    step_overhead: float = 1e-3

    def __post_init__(self) -> None:
        for name in ("peak_flops", "peak_bandwidth", "memory", "peak_link"):
            value = getattr(self, name)
            if not value > 0:
                raise InvalidConfigError(f"{name} is {value}; it must be above 0", name)
        for name in ("matmul_efficiency", "bandwidth_efficiency", "link_efficiency"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise InvalidConfigError(
                    f"{name} is {value}; it must be above 0 and at most 1", name
                )
        for name in ("layer_overhead", "step_overhead"):
            value = getattr(self, name)
            if not value >= 0:
                raise InvalidConfigError(f"{name} is {value}; it must be at least 0", name)

    @property
    def flops(self) -> float:
        """Operations a second that a model reaches."""
        return self.peak_flops * self.matmul_efficiency

    @property
    def bandwidth(self) -> float:
        """Bytes a second that a model reaches."""
        return self.peak_bandwidth * self.bandwidth_efficiency

    @property
    def link(self) -> float:
        """Bytes a second at which blocks are swapped."""
        return self.peak_link * self.link_efficiency


# The peaks of the GPUs are those of NVIDIA's data sheets, without sparsity: of the SXM boards for
# H100, H200 and A100, and of the L4. An "80 GB" board reports 80 GiB. Efficiencies and overheads of
# the GPUs are assumptions, the same for all, for decodes in captured graphs. They shift every
# policy alike; a `Fitted` cost needs none of them. Links are also those of the data sheets: PCIe 5
# with 16 lanes for H100 and H200 (128 GB/s both ways together), PCIe 4 for A100 and L4 (64 GB/s).
# `cpu` is the machine of docs/results.md. Reads are measured there (31.5 GB/s). Matrix products
# were measured separately (2.5 TFLOP/s: bfloat16 `F.linear` of 512 tokens, 896 x 4864, which
# streams weights at 15 GB/s for few tokens). With these figures, the decode step of the 387 M model
# at one session (84.9 ms) leaves an overhead of 1.4 ms a layer, and its prefills reach 0.22 (128
# tokens) to 0.4 (2,048 tokens) of the peak. Its host memory is its memory, which a copy both reads
# and writes.
_DEVICES = (
    Device(
        name="h100", peak_flops=989e12, peak_bandwidth=3.35e12, memory=80 * _GIB, peak_link=64e9
    ),
    Device(
        name="h200", peak_flops=989e12, peak_bandwidth=4.8e12, memory=141 * _GIB, peak_link=64e9
    ),
    Device(name="a100-40gb", peak_flops=312e12, peak_bandwidth=1.555e12, memory=40 * _GIB),
    Device(name="a100-80gb", peak_flops=312e12, peak_bandwidth=2.039e12, memory=80 * _GIB),
    Device(name="l4", peak_flops=121e12, peak_bandwidth=300e9, memory=24 * _GIB),
    Device(
        name="cpu",
        peak_flops=2.5e12,
        peak_bandwidth=31.5e9,
        memory=24 * _GIB,
        peak_link=31.5e9 / 2,
        matmul_efficiency=0.3,
        bandwidth_efficiency=0.48,
        layer_overhead=1.4e-3,
        step_overhead=0.5e-3,
    ),
)
DEVICES = {device.name: device for device in _DEVICES}


def named_device(name: str) -> Device:
    """The device with this name.

    Raises:
        InvalidConfigError: there is no such device.
    """
    device = DEVICES.get(name)
    if device is None:
        raise InvalidConfigError(
            f"device is {name!r}; it must be one of {', '.join(DEVICES)}", "device"
        )
    return device
