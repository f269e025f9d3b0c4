from typing import Any, Protocol, TypeAlias

class Array(Protocol):
    """An array with DLPack on the CPU: a torch tensor, a numpy array."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...

# Level and threads.
def levels() -> list[str]: ...
def choose_level(name: str) -> None: ...
def level() -> str: ...
def threads() -> int: ...
def set_threads(count: int) -> None: ...

# Program.
View: TypeAlias = tuple[int, int, int]  # buffer, first column, columns

class Step:
    def __init__(
        self,
        input_ids: Array,
        position_ids: Array,
        slots: Array,
        starts: Array,
        counts: Array,
        block_tables: Array,
        last_tokens: Array,
    ) -> None: ...

class Experts:
    def __init__(
        self,
        experts: int,
        chosen: int,
        score: str,
        correction: Array | None,
        groups: int,
        kept_groups: int,
        group_best: int,
        normalised: bool,
        scale: float,
        factors: Array | None,
        width: int,
        inner: int,
        up: Array,
        up_bias: Array | None,
        gated: bool,
        activation: str,
        limit: float,
        shift: float,
        down: Array,
        down_bias: Array | None,
    ) -> None: ...

class Program:
    def __init__(self) -> None: ...
    def buffer(self, rows: Array, per_sample: bool = False) -> int: ...
    def cache(
        self, layer: int, keys: Array, values: Array | None, head_dim: int, value_dim: int
    ) -> None: ...
    def embed(
        self, out: View, table: Array, vocab_size: int, packed: bool, positions: bool
    ) -> int: ...
    def norm(
        self,
        out: View,
        x: View,
        groups: int,
        weight: Array | None,
        bias: Array | None,
        eps: float,
        center: bool,
    ) -> int: ...
    def linear(
        self,
        out: View,
        x: View,
        weight: Array,
        n: int,
        k: int,
        bias: Array | None,
        gated: bool,
        activation: str,
        residual: View | None,
        alpha: float,
    ) -> int: ...
    def rotate(
        self, x: View, heads: int, cos: Array, sin: Array, interleaved: bool, begin: int = 0
    ) -> int: ...
    def store(self, layer: int, key: View, value: View | None) -> int: ...
    def attend(
        self,
        out: View,
        query: View,
        layer: int,
        heads: int,
        scaling: float,
        window: int,
        softcap: float,
        sinks: Array | None,
    ) -> int: ...
    def elementwise(
        self,
        out: View,
        x: View,
        combine: str,
        y: View | Array | None,
        activation: str,
        alpha: float,
    ) -> int: ...
    def gather(self, out: View, x: View) -> int: ...
    def experts(self, out: View, x: View, logits: View, experts: Experts) -> int: ...
    def __len__(self) -> int: ...
    def run(self, step: Step, first: int, last: int) -> None: ...
    def profile(self) -> dict[str, tuple[int, float]]: ...

# Layer.
def norm(
    out: Array,
    x: Array,
    groups: int = 1,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-6,
    center: bool = False,
) -> None: ...
def rotate(
    x: Array, heads: int, positions: Array, cos: Array, sin: Array, interleaved: bool = False
) -> None: ...
def embed(out: Array, ids: Array, table: Array, vocab_size: int, packed: bool) -> None: ...
def elementwise(
    out: Array,
    x: Array,
    combine: str = "none",
    y: Array | None = None,
    activation: str = "none",
    alpha: float = 1.0,
) -> None: ...

# Sampling.
def sample(
    logits: Array,
    temperature: Array,
    top_k: Array,
    top_p: Array,
    min_p: Array,
    uniform: Array,
    tokens: Array,
) -> None: ...

# Products of packed weights.
def packed_size(n: int, k: int) -> int: ...
def pack_linear(weight: Array, packed: Array) -> None: ...
def linear(
    out: Array,
    x: Array,
    weight: Array,
    n: int,
    k: int,
    bias: Array | None = None,
    gated: bool = False,
    activation: str = "none",
    residual: Array | None = None,
    alpha: float = 1.0,
    bits: int = 0,
    group: int = 0,
    has_zeros: bool = False,
) -> None: ...
def coded_size(n: int, k: int, bits: int, group: int, has_zeros: bool) -> int: ...
def pack_codes(
    codes: Array, scales: Array, zeros: Array | None, bits: int, group: int, packed: Array
) -> None: ...
def advise_huge(array: Array) -> None: ...
def trim_heap() -> None: ...

# Attention.
BLOCK: int

def key_unit(dtype: str, head_dim: int) -> int: ...
def value_unit(value_dim: int) -> int: ...
def store(keys: Array, values: Array, slots: Array, key: Array, value: Array) -> None: ...
def attend(
    out: Array,
    query: Array,
    keys: Array,
    values: Array,
    starts: Array,
    counts: Array,
    block_tables: Array,
    heads: int,
    scaling: float,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Array | None = None,
) -> None: ...
def plan_attention(
    starts: Array,
    counts: Array,
    heads: int,
    kv_heads: int,
    value_dim: int,
    window: int = 0,
    threads: int = 1,
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]], int, list[int]]: ...
def most_plan_bytes(
    rows: int, tokens: int, longest: int, heads: int, kv_heads: int, value_dim: int
) -> int: ...
