from __future__ import annotations

import gc
import re
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.native import kernels_or_skip

native = kernels_or_skip()

WIDTH, VOCAB, BLOCKS, POSITIONS, ROWS = 64, 50, 6, 40, 24
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 16
LAST = 2**63 - 1  # what follows it is negative in 64 bits
TOKENS, SAMPLES, FLOAT = range(3)  # buffers of `written`

Program = Any


def step(**changes: object) -> Any:
    """Two rows: 3 tokens of a sequence that begins, and token 17 of another."""
    inputs: dict[str, object] = {
        "input_ids": [1, 2, 3, 4],
        "position_ids": [0, 1, 2, 17],
        "slots": [0, 1, 2, 33],
        "starts": [0, 17],
        "counts": [3, 1],
        "block_tables": [[0, 99], [1, 2]],  # 99 lies past its row's blocks
        "last_tokens": [2, 3],
    }
    arrays = {name: np.array(value, dtype=np.int64) for name, value in (inputs | changes).items()}
    return native.Step(**arrays)


def written() -> Program:
    """A program without instructions: buffers of 4 * WIDTH columns in bfloat16, and layer 0."""
    program = native.Program()
    program.buffer(torch.zeros(ROWS, 4 * WIDTH, dtype=torch.bfloat16))
    program.buffer(torch.zeros(3, 4 * WIDTH, dtype=torch.bfloat16), per_sample=True)
    program.buffer(torch.zeros(ROWS, 4 * WIDTH))
    program.cache(0, keys(), values(), HEAD_DIM, HEAD_DIM)
    return program


def keys(dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    depth = 32 if dtype == torch.bfloat16 else HEAD_DIM
    return torch.zeros(BLOCKS, KV_HEADS, 16 * depth, dtype=dtype)


def values(dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.zeros(BLOCKS, KV_HEADS, 16 * HEAD_DIM, dtype=dtype)


def at(column: int = 0, columns: int = WIDTH, buffer: int = TOKENS) -> tuple[int, int, int]:
    return buffer, column, columns


def bf16(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.bfloat16)


GOOD: dict[str, dict[str, object]] = {
    "embed": {
        "out": at(),
        "table": bf16(VOCAB, WIDTH),
        "vocab_size": VOCAB,
        "packed": False,
        "positions": False,
    },
    "norm": {
        "out": at(),
        "x": at(),
        "groups": 2,
        "weight": torch.zeros(32),
        "bias": None,
        "eps": 1e-6,
        "center": False,
    },
    "linear": {
        "out": at(64, 96),
        "x": at(0, 48),
        "weight": bf16(96 * 64),
        "n": 96,
        "k": 48,
        "bias": torch.zeros(96),
        "gated": False,
        "activation": "none",
        "residual": None,
        "alpha": 1.0,
    },
    "rotate": {
        "x": at(),
        "heads": HEADS,
        "cos": torch.zeros(POSITIONS, 8),
        "sin": torch.zeros(POSITIONS, 8),
        "interleaved": False,
    },
    "store": {"layer": 0, "key": at(0, 32), "value": at(32, 32)},
    "attend": {
        "out": at(64),
        "query": at(),
        "layer": 0,
        "heads": HEADS,
        "scaling": 0.25,
        "window": 0,
        "softcap": 0.0,
        "sinks": None,
    },
    "elementwise": {
        "out": at(),
        "x": at(),
        "combine": "none",
        "y": None,
        "activation": "silu",
        "alpha": 1.0,
    },
    "gather": {"out": at(buffer=SAMPLES), "x": at()},
    "convolve": {
        "out": at(64),
        "x": at(),
        "weight": torch.zeros(4, WIDTH),
        "bias": torch.zeros(WIDTH),
        "activation": "silu",
        "state": bf16(5, 3, WIDTH),
    },
    "recur": {
        "out": at(192, 24),
        "reads": [at(0, 20), at(20, 20), at(40, 24), at(64, 4)],
        "beta": at(68, 4),
        "key_heads": 2,
        "decay_bias": torch.zeros(4),
        "decay_scale": torch.zeros(4),
        "softplus": True,
        "low": 0.0,
        "high": 1.0,
        "scaled": False,
        "skip": None,
        "normalize": True,
        "scaling": 1.0,
        "state": torch.zeros(5, 4, 10, 6),
    },
}


@pytest.mark.parametrize("kind", GOOD)
def test_instructions_are_numbered_in_order(kind: str) -> None:
    program = written()
    assert len(program) == 0
    assert getattr(program, kind)(**GOOD[kind]) == 0
    assert getattr(program, kind)(**GOOD[kind]) == 1
    assert len(program) == 2


ALLOWED: list[tuple[str, dict[str, object]]] = [
    ("embed", {"table": bf16(64 * 64), "packed": True, "vocab_size": 50}),
    ("embed", {"table": bf16(POSITIONS, WIDTH), "vocab_size": POSITIONS, "positions": True}),
    ("linear", {"out": at(64, 96, FLOAT)}),
    ("linear", {"residual": at(64, 96), "alpha": 0.5}),
    ("linear", {"gated": True, "out": at(64, 48), "activation": "silu"}),
    ("linear", {"x": at(0, 48, SAMPLES), "out": at(64, 96, SAMPLES)}),
    ("rotate", {"cos": torch.zeros(POSITIONS, 3), "sin": torch.zeros(POSITIONS, 3)}),
    ("rotate", {"cos": torch.zeros(POSITIONS, 3), "sin": torch.zeros(POSITIONS, 3), "begin": 10}),
    ("attend", {"sinks": torch.zeros(HEADS), "window": 8}),
    ("elementwise", {"combine": "add", "y": at(64), "activation": "none"}),
    ("elementwise", {"combine": "multiply", "y": bf16(WIDTH)}),
    ("elementwise", {"combine": "multiply", "y": at(64, 16)}),
]


@pytest.mark.parametrize(("kind", "change"), ALLOWED)
def test_what_else_an_instruction_takes(kind: str, change: dict[str, object]) -> None:
    assert getattr(written(), kind)(**GOOD[kind] | change) == 0


REFUSED: list[tuple[str, dict[str, object], str]] = [
    ("embed", {"out": at(buffer=7)}, "out names buffer 7 of 3"),
    ("embed", {"out": at(buffer=-1)}, "out names buffer -1 of 3"),
    ("embed", {"out": at(-1)}, "out is 64 columns from column -1 of a buffer of 256"),
    ("embed", {"out": at(0, 0)}, "out is 0 columns from column 0 of"),
    ("embed", {"out": at(200)}, "out is 64 columns from column 200 of a buffer of 256"),
    ("embed", {"out": at(2**62, 2**62)}, "out is 4611686018427387904 columns from"),
    ("embed", {"out": at(buffer=SAMPLES)}, "out has a row for each sample"),
    ("embed", {"out": at(buffer=FLOAT)}, "table is bfloat16, not float32"),
    ("embed", {"vocab_size": 51}, "table has 50 rows, not 51"),
    ("embed", {"out": at(0, 32)}, "table has 64 columns, not 32"),
    ("embed", {"table": bf16(64, VOCAB).T}, "table has columns that are not adjacent"),
    ("embed", {"table": bf16(VOCAB, 65)[:, :64]}, "table is not contiguous"),
    ("embed", {"table": bf16(VOCAB * 64), "packed": True}, "table has 3200 numbers, not 4096"),
    # Padded rows times padded columns are 4096, as an integer of 64 bits.
    (
        "embed",
        {"vocab_size": 2**59 + 64, "table": bf16(64 * 64), "packed": True},
        "vocab_size is 576460752303423552; it must be at most",
    ),
    ("norm", {"groups": 3}, "groups is 3, which does not divide x"),
    ("norm", {"groups": 0}, "groups is 0; it must be at least 1"),
    ("norm", {"groups": 1}, "weight has 32 numbers, not 64"),
    ("norm", {"bias": torch.zeros(31)}, "bias has 31 numbers, not 32"),
    ("norm", {"weight": bf16(32)}, "weight has the wrong type or rank"),
    ("norm", {"out": at(buffer=SAMPLES)}, "out and x differ: one has a row for each token"),
    ("norm", {"out": at(buffer=FLOAT)}, "out is float32, not bfloat16"),
    ("norm", {"out": at(0, 32)}, "out has 32 columns, not 64"),
    ("norm", {"out": at(32)}, "out shares some columns with another argument"),
    ("linear", {"k": 47}, "x has 48 columns, not 47"),
    ("linear", {"n": 95}, "out has 96 columns, not 95"),
    ("linear", {"x": at(208, 48)}, "x is read in tiles, up to column 272 of its buffer"),
    ("linear", {"out": at(48, 96)}, "out shares columns with x, its last tile included"),
    ("linear", {"weight": bf16(96 * 48)}, "weight has 4608 numbers, not 6144"),
    ("linear", {"weight": torch.zeros(96 * 64)}, "weight is float32, not bfloat16"),
    ("linear", {"weight": bf16(96, 64)}, "weight has 2 dimensions, not 1"),
    ("linear", {"bias": torch.zeros(48)}, "bias has 48 numbers, not 96"),
    ("linear", {"gated": True}, "out has 96 columns, not 48"),
    ("linear", {"gated": True, "n": 40}, "n is 40; gated, it must be a multiple of 32"),
    ("linear", {"activation": "swish"}, "activation is 'swish', which is none of ours"),
    ("linear", {"alpha": 2.0}, "alpha is 2.000000, but there is no residual"),
    ("linear", {"residual": at(96, 96)}, "out shares some columns"),
    ("linear", {"residual": at(160, 96), "activation": "silu"}, "residual goes with neither"),
    ("linear", {"residual": at(160, 96, SAMPLES)}, "residual and x differ"),
    ("linear", {"residual": at(64, 96, FLOAT)}, "residual is float32, not bfloat16"),
    ("linear", {"x": at(0, 48, FLOAT)}, "out is bfloat16, not float32"),
    ("rotate", {"heads": 5}, "heads is 5, which does not divide x"),
    ("rotate", {"heads": 8}, "cos has 8 columns; a head has 8 numbers to rotate in pairs"),
    ("rotate", {"sin": torch.zeros(POSITIONS, 7)}, "sin has 7 columns, not 8"),
    ("rotate", {"sin": torch.zeros(39, 8)}, "sin has 39 rows, not 40"),
    ("rotate", {"cos": bf16(POSITIONS, 8)}, "cos is bfloat16, not float32"),
    ("rotate", {"x": at(buffer=SAMPLES)}, "x has a row for each sample"),
    ("rotate", {"begin": 1}, "cos has 8 columns; a head has 15 numbers to rotate in pairs"),
    ("rotate", {"begin": -1}, "begin is -1; it must be at least 0"),
    ("rotate", {"begin": 2**62}, "begin is 4611686018427387904; it must be at most 16"),
    ("store", {"value": None}, "value is missing"),
    ("store", {"layer": 1}, "layer 1 has no cache"),
    ("store", {"key": at()}, "key has 64 columns, not 32"),
    ("store", {"value": at(0, 48)}, "value has 48 columns, not 32"),
    ("store", {"key": at(0, 32, FLOAT)}, "key is float32, not bfloat16"),
    ("attend", {"heads": 3}, "heads is 3; the cache's 2 heads do not divide it"),
    ("attend", {"query": at(0, 32)}, "query has 32 columns, not 64"),
    ("attend", {"out": at(0)}, "out shares columns with query"),
    ("attend", {"heads": 2**60 + 4}, "heads is 1152921504606846980; it must be at most 64"),
    ("attend", {"scaling": 0.0}, "scaling is 0.000000; it must be above 0"),
    ("attend", {"window": -1}, "window is -1; it must be at least 0"),
    ("attend", {"softcap": float("nan")}, "softcap is nan"),
    ("attend", {"sinks": torch.zeros(HEADS + 1)}, "sinks has 5 numbers, not 4"),
    ("elementwise", {"combine": "subtract"}, "combine is 'subtract'; it must be none, add"),
    ("elementwise", {"combine": "add"}, "y is missing; combine is 'add'"),
    ("elementwise", {"y": at(64)}, "y is given, but combine is 'none'"),
    ("elementwise", {"combine": "add", "y": at(64)}, "activation is 'silu'; a sum has none"),
    ("elementwise", {"combine": "multiply", "y": at(64, 63)}, "y has 63 columns, not 64"),
    ("elementwise", {"combine": "multiply", "y": torch.zeros(WIDTH)}, "y is float32, not"),
    ("gather", {"out": at(64)}, "out has a row for each token, not for each sample"),
    ("gather", {"x": at(buffer=SAMPLES)}, "x has a row for each sample, not for each token"),
    ("gather", {"x": at(0, 63)}, "out has 64 columns, not 63"),
    ("convolve", {"out": at()}, "out shares columns with x"),
    ("convolve", {"out": at(64, 63)}, "out has 63 columns, not 64"),
    ("convolve", {"x": at(buffer=SAMPLES)}, "x has a row for each sample"),
    ("convolve", {"state": bf16(5, 4, WIDTH)}, "state has 256 numbers a slot, not 192"),
    ("convolve", {"state": torch.zeros(5, 3, WIDTH)}, "state is float32, not bfloat16"),
    ("convolve", {"state": bf16(0, 3, WIDTH)}, "slots is 0; it must be at least 1"),
    ("recur", {"reads": [at(0, 20)]}, "reads has 1 views, not 4"),
    ("recur", {"out": at(40, 24)}, "out shares columns with what is read"),
    ("recur", {"out": at(71, 24)}, "out shares columns with beta"),
    ("recur", {"beta": at(68, 5)}, "beta has 5 columns, not 4"),
    ("recur", {"state": torch.zeros(5, 4, 61)}, "state has 244 numbers a slot, not 240"),
]


@pytest.mark.parametrize(("kind", "change", "told"), REFUSED)
def test_a_wrong_argument_is_refused_by_name(
    kind: str, change: dict[str, object], told: str
) -> None:
    program = written()
    with pytest.raises(ValueError, match=f"^{re.escape(told)}"):
        getattr(program, kind)(**GOOD[kind] | change)
    assert len(program) == 0


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"layer": 0, "head_dim": 17}, "head_dim has 17 columns, not 16"),
        ({"layer": 0, "keys": keys(torch.float32), "values": values(torch.float32)}, "keys is f"),
        ({"keys": keys(torch.float32)}, "values is bfloat16, not float32"),
        ({"keys": keys()[:, :, :-1]}, "keys is not contiguous"),
        ({"keys": bf16(BLOCKS, KV_HEADS, 256)}, "keys has 256 numbers a unit, not 512"),
        ({"values": bf16(BLOCKS + 1, KV_HEADS, 256)}, "values has 7 blocks, not 6"),
        ({"values": bf16(BLOCKS, 1, 256)}, "values has 1 heads, not 2"),
        ({"head_dim": 0}, "head_dim is 0; it must be at least 1"),
        # The numbers of a unit are 512, as an integer of 64 bits.
        ({"head_dim": 2**60 + 32}, "head_dim is 1152921504606847008; it must be at most 512"),
        ({"value_dim": 2**60 + 16}, "value_dim is 1152921504606846992; it must be at most 256"),
        ({"keys": bf16(1, 0, 512), "values": bf16(1, 0, 256)}, "kv_heads is 0"),
    ],
)
def test_a_wrong_cache_is_refused_by_name(change: dict[str, object], told: str) -> None:
    good = {"layer": 1, "keys": keys(), "values": values(), "head_dim": 16, "value_dim": 16}
    with pytest.raises(ValueError, match=f"^{re.escape(told)}"):
        written().cache(**good | change)


def test_values_may_be_in_keys() -> None:
    program = written()
    program.cache(1, keys(), None, HEAD_DIM, 12)
    assert program.store(1, at(0, 32), None) == 0
    assert program.attend(**GOOD["attend"] | {"layer": 1, "out": at(64, 48)}) == 1
    with pytest.raises(ValueError, match=r"^value is given, but the cache has values in its keys"):
        program.store(1, at(0, 32), at(32, 32))
    with pytest.raises(ValueError, match=r"^value_dim is 17; it must be at most 16"):
        program.cache(2, keys(), None, HEAD_DIM, HEAD_DIM + 1)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"input_ids": [1, 2, -3, 4]}, "input_ids holds -3, which is negative"),
        ({"position_ids": [0, 1, 2]}, "position_ids has 3 numbers, not 4"),
        ({"slots": [0, 1, 2, -1]}, "slots holds -1"),
        ({"starts": [0, 32]}, "starts[1] is 32, outside the row's block table"),
        ({"starts": [-1, 17]}, "starts[0] is -1"),
        ({"starts": [0, 2**63 - 1]}, "starts[1] is 9223372036854775807"),
        ({"counts": [4, 0]}, "counts[1] is 0; it must be at least 1"),
        ({"counts": [3, 2**63 - 1]}, "counts[1] is 9223372036854775807"),
        ({"counts": [2, 1]}, "counts are 3 together, but there are 4 tokens"),
        ({"block_tables": [[0, 0]]}, "block_tables has 1 rows, not 2"),
        ({"block_tables": [[0, 0], [1, -2]]}, "block_tables holds -2"),
        ({"starts": [0, 31], "counts": [2, 2]}, "block_tables has 2 columns; row 1 needs 3"),
        ({"last_tokens": [4]}, "last_tokens holds 4, but there are 4 tokens"),
        ({"states": [1]}, "states has 1 numbers, not 2"),
        ({"states": [1, -1]}, "states holds -1"),
    ],
)
def test_a_step_whose_numbers_do_not_fit_each_other(change: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(told)}"):
        step(**change)


@pytest.mark.parametrize("name", ["input_ids", "block_tables"])
def test_a_step_of_another_type(name: str) -> None:
    arrays = {"input_ids": np.zeros(1, np.int32), "block_tables": np.zeros((1, 1), np.int32)}
    good = dict.fromkeys(("position_ids", "slots", "starts", "last_tokens"), np.zeros(1, np.int64))
    good |= {"input_ids": np.zeros(1, np.int64), "counts": np.ones(1, np.int64)}
    good["block_tables"] = np.zeros((1, 1), np.int64)
    native.Step(**good)
    with pytest.raises(ValueError, match=f"{name} "):
        native.Step(**good | {name: arrays[name]})


@pytest.mark.parametrize(
    ("kind", "change", "inputs", "told"),
    [
        ("embed", {}, {"input_ids": [1, 2, 3, 50]}, "input_ids need 51 rows of the table"),
        ("embed", {}, {"input_ids": [1, 2, 3, LAST]}, f"input_ids need {LAST + 1} rows"),
        ("rotate", {}, {"position_ids": [0, 1, 2, LAST]}, f"position_ids need {LAST + 1} pos"),
        ("store", {}, {"slots": [0, 1, 2, LAST]}, f"slots need {(LAST + 1) // 16} blocks"),
        ("attend", {}, {"block_tables": [[0, 0], [1, LAST]]}, f"block_tables need {LAST + 1} b"),
        (
            "embed",
            {"positions": True, "table": bf16(17, WIDTH), "vocab_size": 17},
            {},
            "position_ids need 18 positions, but there are 17",
        ),
        (
            "rotate",
            {"cos": torch.zeros(17, 8), "sin": torch.zeros(17, 8)},
            {},
            "position_ids need 18 positions, but there are 17",
        ),
        ("store", {}, {"slots": [0, 1, 2, 96]}, "slots need 7 blocks, but the cache has 6"),
        (
            "attend",
            {},
            {"block_tables": [[0, 0], [1, 6]]},
            "block_tables need 7 blocks, but the cache has 6",
        ),
        ("gather", {}, {"last_tokens": [0, 1, 2, 3]}, "step has 4 rows that sample, but"),
        ("convolve", {}, {}, "states are missing; the program keeps some"),
        ("recur", {}, {"states": [0, 5]}, "states need 6 slots, but there are 5"),
        (
            "norm",
            {},
            {
                "input_ids": [0] * 25,
                "position_ids": [0] * 25,
                "slots": [0] * 25,
                "counts": [16, 9],
            },
            "step has 25 tokens, but the buffers' rows are 24",
        ),
    ],
)
def test_a_step_that_would_leave_the_programs_memory_is_refused(
    kind: str, change: dict[str, object], inputs: dict[str, object], told: str
) -> None:
    program = written()
    getattr(program, kind)(**GOOD[kind] | change)
    with pytest.raises(ValueError, match=f"^{re.escape(told)}"):
        program.run(step(**inputs), 0, 1)
    assert program.profile() == {}


def test_only_instructions_that_are_there_run() -> None:
    program = written()
    program.gather(**GOOD["gather"])
    for first, last in ((-1, 1), (0, 2), (1, 0)):
        with pytest.raises(ValueError, match="first, last are"):
            program.run(step(), first, last)
    program.run(step(), 1, 1)
    assert program.profile() == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gathered_rows_are_those_that_sample(dtype: torch.dtype) -> None:
    rows, picked = torch.randn(9, 40).to(dtype), torch.zeros(5, 64, dtype=dtype)
    program = native.Program()
    x, out = program.buffer(rows), program.buffer(picked, per_sample=True)
    program.gather((out, 7, 30), (x, 3, 30))
    program.run(step(last_tokens=[3, 0]), 0, 1)
    assert torch.equal(picked[:2, 7:37], rows[[3, 0], 3:33])
    picked[:2, 7:37] = 0
    assert not picked.any(), "nothing else is written"


def test_a_profile_counts_since_it_was_last_read() -> None:
    program = written()
    program.gather(**GOOD["gather"])
    program.gather(**GOOD["gather"])
    for _ in range(3):
        program.run(step(), 0, 2)
    program.run(step(last_tokens=[]), 0, 2)  # no rows: nothing to do
    profile = program.profile()
    assert list(profile) == ["gather"]
    runs, seconds = profile["gather"]
    assert runs == 6
    assert 0 < seconds < 1
    assert program.profile() == {}


def test_a_cache_is_replaced_when_no_run_reads_it() -> None:
    """A run that has begun ends with the cache that it began with."""
    old, new = torch.zeros(1, 1, 512), torch.zeros(1, 1, 512)
    program = native.Program()
    program.cache(0, old, torch.zeros(1, 1, 512), 32, 32)
    rows = program.buffer(torch.ones(1, 32))
    for _ in range(100_000):
        program.store(0, (rows, 0, 32), (rows, 0, 32))
    one = {name: [0] for name in ("input_ids", "position_ids", "slots", "starts", "last_tokens")}
    inputs = step(**one, counts=[1], block_tables=[[0]])
    run = threading.Thread(target=program.run, args=(inputs, 0, len(program)))
    run.start()
    seen = old.numpy()
    while not seen.any():
        time.sleep(0)
    program.cache(0, new, torch.zeros(1, 1, 512), 32, 32)
    run.join()
    assert not new.any()
    program.run(inputs, 0, 1)
    assert new.sum() == 32


def test_programs_take_turns_with_a_step() -> None:
    """A step's attention state is one program's at a time."""
    length = 4000  # in shares, whose parts are the step's
    inputs = step(
        input_ids=[0],
        position_ids=[0],
        slots=[0],
        starts=[length - 1],
        counts=[1],
        block_tables=[range(length // 16)],
        last_tokens=[],
    )
    programs, outs = [], []
    for number in range(3):
        program = native.Program()
        keys = torch.zeros(length // 16, 1, 1024)
        program.cache(0, keys, torch.full_like(keys, number), 64, 64)
        outs.append(torch.zeros(1, 64))
        query, out = program.buffer(torch.zeros(1, 64)), program.buffer(outs[-1])
        for _ in range(300):
            program.attend((out, 0, 64), (query, 0, 64), 0, 1, 0.25, 0, 0.0, None)
        programs.append(program)
    wrong = []

    def work(number: int) -> None:
        for at in range(300):
            programs[number].run(inputs, at, at + 1)
            if not torch.allclose(outs[number], torch.tensor(float(number))):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_program_and_a_step_keep_their_memory() -> None:
    program = native.Program()
    rows = np.zeros((3, 8), np.float32)
    inputs = {name: np.ones(1, np.int64) for name in ("input_ids", "position_ids", "slots")}
    inputs |= {name: np.array([number]) for name, number in (("starts", 0), ("counts", 1))}
    inputs |= {"block_tables": np.zeros((1, 1), np.int64), "last_tokens": np.zeros(1, np.int64)}
    held = [weakref.ref(array) for array in (rows, *inputs.values())]
    program.buffer(rows)
    one = native.Step(**inputs)
    del rows, inputs
    gc.collect()
    assert all(array() is not None for array in held)
    del program, one
    gc.collect()
    assert all(array() is None for array in held)
