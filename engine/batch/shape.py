"""ModelShape: a model's dimensions, and the work of a step computed from them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.api.config import EngineConfig
from engine.api.status import ModelCard
from engine.api.telemetry import StepCost
from engine.batch.plan import Row


@dataclass(frozen=True, slots=True)
class LayerHeads:
    """The heads of one layer, with the same fields as `ModelShape`."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_dim: int
    value_in_key: bool = False

    @property
    def stored(self) -> int:
        """Numbers stored for a token."""
        apart = 0 if self.value_in_key else self.value_dim
        return self.num_kv_heads * (self.head_dim + apart)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The dimensions that decide what a model costs.

    Attributes:
        num_params: all parameters, tied ones once.
        num_active_params: parameters of the layers' matrices that one token is multiplied with (in
            a mixture of experts, the chosen experts), without embedding and head.
        hidden_size: width of the residual stream.
        vocab_size: rows of the output head.
        num_heads, num_kv_heads: query heads, and key/value heads, of one layer.
        head_dim, value_dim: length of a key and of a value of one head.
        value_in_key: whether a value is the first part of its key, so that it is stored once.
            Latents are such, with one head that all query heads share (DeepSeek-V2, arXiv
            2405.04434, section 2.1).
        mixed: the heads of each attention layer, if they differ; the numbers above are then the
            largest. Empty if all are alike.
        sources: for each attention layer, the index among attention layers of the one whose keys
            and values it reads: itself, or one before it (cross-layer attention, arXiv 2405.12981).
            Empty if each has its own.
        windows: sliding window of each attention layer, in tokens; None is full attention.
        dtype_bytes: bytes of one weight and of one cache entry.
        saved_bytes: bytes that quantization saves, compared with `num_params` weights of
            `dtype_bytes`.
        state_bytes: bytes of a sequence's state beside keys and values, whatever its length.
        kv_bytes_per_token: stored bytes of one token's keys and values in all layers.
    """

    num_params: int
    num_active_params: int
    hidden_size: int
    vocab_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_dim: int
    windows: tuple[int | None, ...]
    dtype_bytes: int
    saved_bytes: int = 0
    state_bytes: int = 0
    mixed: tuple[LayerHeads, ...] = ()
    value_in_key: bool = False
    sources: tuple[int, ...] = ()
    kv_bytes_per_token: int = field(init=False)
    # Used in each step: numbers of a token that all layers read, and multiplications for a pair of
    # a query and a key, in all layers.
    _read: int = field(init=False, repr=False)
    _pairs: int = field(init=False, repr=False)
    # How many layers attend to everything; and (window, how many) of the others.
    _full: int = field(init=False, repr=False)
    _windowed: tuple[tuple[int, int], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        layers = self.layers
        stored = sum(layers[layer].stored for layer in self.storing)
        windowed = Counter(self.windows)
        full = windowed.pop(None, 0)
        values = {
            "_full": full,
            "_windowed": tuple((window, count) for window, count in windowed.items() if window),
            "kv_bytes_per_token": stored * self.dtype_bytes,
            "_read": sum(one.stored for one in layers),
            "_pairs": sum(one.num_heads * (one.head_dim + one.value_dim) for one in layers),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def num_layers(self) -> int:
        """Attention layers."""
        return len(self.windows)

    @property
    def layers(self) -> tuple[LayerHeads, ...]:
        """The heads of each attention layer."""
        alike = LayerHeads(
            self.num_heads, self.num_kv_heads, self.head_dim, self.value_dim, self.value_in_key
        )
        return self.mixed or (alike,) * self.num_layers

    @property
    def storing(self) -> tuple[int, ...]:
        """The attention layers that store keys and values of their own."""
        sources = self.sources or range(self.num_layers)
        return tuple(layer for layer, source in enumerate(sources) if layer == source)

    @property
    def has_latents(self) -> bool:
        """Whether a layer stores latents, from which keys and values are computed."""
        return self.value_in_key or any(one.value_in_key for one in self.mixed)

    @property
    def weight_bytes(self) -> int:
        return self.num_params * self.dtype_bytes - self.saved_bytes

    def card(
        self,
        config: EngineConfig,
        *,
        name: str,
        architecture: str,
        attention: str,
        gpu_uuid: str = "",
    ) -> ModelCard:
        """The model card for a model of this shape in this envelope."""
        return ModelCard(
            name=name,
            architecture=architecture,
            num_params=self.num_params,
            dtype=config.dtype,
            device=config.device,
            attention=attention,
            max_model_len=config.max_model_len,
            weight_bytes=self.weight_bytes,
            kv_bytes_per_token=self.kv_bytes_per_token,
            gpu_uuid=gpu_uuid,
        )

    def work(self, rows: Iterable[Row]) -> StepWork:
        """The work of a step's rows. Computing it takes 0.25 us a row where attention is full."""
        tokens = samples = twice = reached = 0
        rows = tuple(rows)
        for row in rows:
            start, count = row.start, row.count
            tokens += count
            samples += row.samples
            # The token at index i attends to i + 1 positions. Twice the sum of that over the row:
            twice += count * (2 * start + count + 1)
            reached += start + count
        attended, read = self._full * (twice // 2), self._full * reached
        for window, number in self._windowed:
            attended += number * sum(_attended(row.start, row.count, window) for row in rows)
            read += number * sum(min(row.start + row.count, row.count + window - 1) for row in rows)
        return StepWork(tokens, samples, attended, read)

    def works_ahead(self, rows: Sequence[Row]) -> Iterator[StepWork]:
        """The work of a step of decodes, and of each step after it if every row then computes its
        sequence's next token.
        """
        if not self._windowed:
            tokens, samples, attended, read = self.work(rows)
            grows = self._full * tokens
            while True:
                yield StepWork(tokens, samples, attended, read)
                attended += grows
                read += grows
        for step in itertools.count():
            yield self.work([row._replace(start=row.start + step) for row in rows])

    def cost(self, rows: Iterable[Row]) -> StepCost:
        """FLOPs and bytes that a step needs at least: a lower bound, not a measurement.

        Weights are read once. Each row reads the keys and values of its context once (its query
        tokens share the read, as in FlashAttention) and writes its own. Activations are left out,
        because they stay in cache. Where layers differ in heads, each counts as their mean.
        """
        work = self.work(rows)
        if not work.tokens:
            return StepCost(0, 0)
        flops = 2 * self.num_active_params * work.tokens
        flops += 2 * self.hidden_size * self.vocab_size * work.samples
        layers, written = max(self.num_layers, 1), self.kv_bytes_per_token * work.tokens
        flops += 2 * self._pairs * work.attended // layers
        # A layer reads what it attends to, even if another layer stored it.
        read = self._read * self.dtype_bytes * work.read // layers
        return StepCost(flops, self.weight_bytes + read + written)


class StepWork(NamedTuple):
    """Size of a step, in a model's own units.

    Attributes:
        tokens: how many are computed, in every layer.
        samples: how many rows of logits are computed.
        attended: pairs of a query and a key, summed over the layers.
        read: keys (and values) read, summed over the layers.
    """

    tokens: int
    samples: int
    attended: int
    read: int


def _attended(start: int, count: int, window: int) -> int:
    """Sum over the tokens at [start, start + count) of the positions each attends to."""
    last = start + count
    if last <= window:
        return count * (start + last + 1) // 2
    # Each token from position `window` on attends to `window` positions.
    full = max(start, window)
    below = (full * (full + 1) - start * (start + 1)) // 2 if start < window else 0
    return below + (last - full) * window
