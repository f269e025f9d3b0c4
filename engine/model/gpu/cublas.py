"""Launches of a matrix product by torch, which is cuBLAS, and of the operations after it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engine.triton.elementwise import elementwise
from engine.triton.gated import gated

OfRows = Callable[[int], object]


def linear_launches(
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str,
    residual: Tensor | None,
    alpha: float,
) -> tuple[OfRows, ...]:
    """activation(x weight^T + bias), or residual + alpha * (x weight^T + bias).

    Each launch takes the number of rows.

    Args:
        out: [most rows, N], float32 or of x's type; it may be `residual`.
        x: [most rows, K].
        weight: [N, K].
        bias: [N], of x's type.
    """
    columns = weight.t()
    launches: list[OfRows] = []
    if residual is not None:
        if residual.data_ptr() == out.data_ptr():
            launches.append(sliced(lambda a, b: a.addmm_(b, columns, alpha=alpha), out, x))
        else:
            launches.append(
                sliced(
                    lambda a, b, c: torch.addmm(c, b, columns, alpha=alpha, out=a),
                    out,
                    x,
                    residual,
                )
            )
        if bias is not None:
            row = bias.float() * alpha
            launches.append(sliced(lambda a: elementwise(a, a, "add", row), out))
        return tuple(launches)
    if bias is not None and out.dtype == x.dtype:
        launches.append(sliced(lambda a, b: torch.addmm(bias, b, columns, out=a), out, x))
    else:
        launches.append(sliced(lambda a, b: _multiply(a, b, columns), out, x))
        if bias is not None:
            launches.append(sliced(lambda a: elementwise(a, a, "add", bias), out))
    if activation != "none":
        launches.append(sliced(lambda a: elementwise(a, a, "none", None, activation), out))
    return tuple(launches)


def gated_launches(
    out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, both: Tensor
) -> tuple[OfRows, ...]:
    """activation(x gate^T + bias) * (x up^T + bias), as `linear_launches`.

    Args:
        out: [most rows, N].
        weight: [2 N, K], gate above up.
        bias: [2 N].
        both: [most rows, 2 N], a buffer for the two factors.
    """
    columns = weight.t()
    row = None if bias is None else bias.float()
    return (
        sliced(lambda a, b: torch.mm(b, columns, out=a), both, x),
        sliced(lambda a, b: gated(a, b, activation, row), out, both),
    )


def sliced(launch: Callable[..., object], *matrices: Tensor) -> OfRows:
    """A launch over the number of rows that it is called with."""
    return lambda rows: launch(*(matrix[:rows] for matrix in matrices))


def _multiply(out: Tensor, x: Tensor, columns: Tensor) -> None:
    """Multiply x and columns. Sums and result are float32 if `out` is."""
    if out.dtype == x.dtype:
        torch.mm(x, columns, out=out)
    elif x.device.type == "cuda":
        torch.ops.aten.mm.dtype_out(x, columns, out.dtype, out=out)
    else:
        torch.mm(x.to(out.dtype), columns.to(out.dtype), out=out)
