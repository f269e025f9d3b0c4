"""why_not_quantized: why weights cannot be quantized on a device of this machine."""

from __future__ import annotations

from engine.native import kernels, why_not


def why_not_quantized(device: str) -> str:
    """A clause that says why weights cannot be quantized; empty if there is no known reason before
    a model is loaded.

    Args:
        device: torch's name of it.

    Raises:
        InvalidConfigError: as `engine.native.kernels`.
    """
    if device != "cpu":
        return f"weights are quantized on a processor only, and the device is {device}"
    if kernels() is None:
        return f"weights are quantized for the native kernels only, and there are none: {why_not()}"
    return ""
