"""Shapes of published models, computed from their dimensions."""

from __future__ import annotations

from functools import partial

from engine.api.errors import InvalidConfigError
from engine.batch.shape import ModelShape

_BFLOAT16 = 2


def _gated(
    *,
    hidden: int,
    intermediate: int,
    layers: int,
    heads: int,
    kv_heads: int,
    vocab: int,
    tied: bool = False,
    qkv_bias: bool = False,
    window: int | None = None,
) -> ModelShape:
    """A decoder of the Llama family: RMSNorm, grouped queries, a feed-forward of three matrices."""
    head_dim = hidden // heads
    width = (heads + 2 * kv_heads) * head_dim
    matrices = width * hidden + heads * head_dim * hidden + 3 * hidden * intermediate
    layer = matrices + 2 * hidden + (width if qkv_bias else 0)
    embeddings = vocab * hidden * (1 if tied else 2)
    return ModelShape(
        num_params=layers * layer + hidden + embeddings,
        num_active_params=layers * matrices,
        hidden_size=hidden,
        vocab_size=vocab,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        value_dim=head_dim,
        windows=(window,) * layers,
        dtype_bytes=_BFLOAT16,
    )


def _opt(*, hidden: int, layers: int, heads: int, vocab: int, positions: int) -> ModelShape:
    """A decoder of the OPT family: LayerNorm, biases, learned positions, a feed-forward four times
    as wide as the residual stream, and an output head that is tied to the embedding."""
    matrices = 4 * hidden * hidden + 2 * hidden * 4 * hidden
    biases = 4 * hidden + 4 * hidden + hidden
    layer = matrices + biases + 4 * hidden
    return ModelShape(
        num_params=layers * layer + 2 * hidden + (vocab + positions) * hidden,
        num_active_params=layers * matrices,
        hidden_size=hidden,
        vocab_size=vocab,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden // heads,
        value_dim=hidden // heads,
        windows=(None,) * layers,
        dtype_bytes=_BFLOAT16,
    )


_qwen = partial(
    _gated,
    hidden=896,
    intermediate=4864,
    layers=24,
    heads=14,
    kv_heads=2,
    tied=True,
    qkv_bias=True,
)

# The dimensions are those of the models' published config.json: Llama 3.1 8B and 70B, Mistral 7B
# v0.1, OPT 13B and Qwen2.5 0.5B. `387m` is Qwen2.5 0.5B with a vocabulary of 32,000, as in
# benchmarks/model_387m.py.
SHAPES: dict[str, ModelShape] = {
    "llama-8b": _gated(
        hidden=4096, intermediate=14336, layers=32, heads=32, kv_heads=8, vocab=128256
    ),
    "llama-70b": _gated(
        hidden=8192, intermediate=28672, layers=80, heads=64, kv_heads=8, vocab=128256
    ),
    "mistral-7b": _gated(
        hidden=4096, intermediate=14336, layers=32, heads=32, kv_heads=8, vocab=32000, window=4096
    ),
    "opt-13b": _opt(hidden=5120, layers=40, heads=40, vocab=50272, positions=2050),
    "qwen-0.5b": _qwen(vocab=151936),
    "387m": _qwen(vocab=32000),
}


def named_shape(name: str) -> ModelShape:
    """The shape with this name, in bfloat16.

    Raises:
        InvalidConfigError: there is no such shape.
    """
    shape = SHAPES.get(name)
    if shape is None:
        raise InvalidConfigError(
            f"model is {name!r}; it must be one of {', '.join(SHAPES)}", "model"
        )
    return shape
