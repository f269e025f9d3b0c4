"""Activations, in float32."""

from __future__ import annotations

import triton
import triton.language as tl

from engine.triton.attention import tanh

# As in `engine.model.program.activations`.
ACTIVATIONS = (
    "none",
    "silu",
    "gelu",
    "gelu_tanh",
    "quick_gelu",
    "relu",
    "relu2",
    "tanh",
    "sigmoid",
    "softplus",
)


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    """One of ACTIVATIONS of float32 numbers.

    GELU (arXiv 1606.08415) is by the error function, or by its approximation there with tanh, where
    0.5 (1 + tanh(z)) is sigmoid(2 z).
    """
    if ACTIVATION == "silu":
        x = x * tl.sigmoid(x)
    elif ACTIVATION == "gelu":
        x = 0.5 * x * (1.0 + tl.math.erf(x * 0.7071067811865476))
    elif ACTIVATION == "gelu_tanh":
        x = x * tl.sigmoid(1.5957691216057308 * x * (1.0 + 0.044715 * x * x))
    elif ACTIVATION == "quick_gelu":
        x = x * tl.sigmoid(1.702 * x)
    elif ACTIVATION == "relu":
        x = tl.maximum(x, 0.0)
    elif ACTIVATION == "relu2":
        x = tl.maximum(x, 0.0)
        x = x * x
    elif ACTIVATION == "tanh":
        x = tanh(x)
    elif ACTIVATION == "sigmoid":
        x = tl.sigmoid(x)
    elif ACTIVATION == "softplus":
        # 2 artanh(z / (2 + z)) is log(1 + z): see activation.hpp.
        z = tl.exp(-tl.abs(x))
        s = z / (2.0 + z)
        square = s * s
        p = 1.0 / 15 + square * (1.0 / 17)
        p = 1.0 / 11 + square * (1.0 / 13 + square * p)
        p = 1.0 / 7 + square * (1.0 / 9 + square * p)
        p = 1.0 / 3 + square * (1.0 / 5 + square * p)
        x = tl.maximum(x, 0.0) + 2.0 * s * (1.0 + square * p)
    else:
        tl.static_assert(ACTIVATION == "none")
    return x
