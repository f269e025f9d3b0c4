"""Decodes of replies that have a structure, beside free ones, and whether each reply has its own.

The masks of a step can be computed only when the tokens of the one before are known, and a GPU's
steps are started before that: here it shows what that costs.
"""

from __future__ import annotations

import itertools
import statistics

from benchmarks.gpu.engine import Started, release
from benchmarks.gpu.serving import Cells, prompts, steps
from engine.api.client import Submission
from engine.api.sampling import SamplingParams
from engine.api.structure import Structure
from engine.structure.compiler import Compiler
from engine.structure.grammar import Grammar
from engine.structure.lead import NO_LEAD
from engine.structure.rules import write
from engine.structure.words import Words

HEAD: Cells = (
    *("model", "rows", "structured", "step ms", "p99 ms", "masks ms", "tok/s", "of free"),
    "replies that have it",
)
# No reply ends before the measurement does.
STATED = {"json_schema": {"type": "array", "items": {"type": "string"}, "minItems": 10_000}}
_LETTERS = [bytes([letter]) for letter in b"abcdefghijklmnopqrstuvwxyz ,.:-{}[]0123456789_'/"]
_PROMPT = 32
_WARM_UP = 4


def grammar(vocab_size: int) -> Grammar:
    """A structure over a vocabulary of so many words: the bytes, and words of three letters, as
    many as there is room for. Token 0 ends a reply.
    """
    longer = map(b"".join, itertools.product(_LETTERS, repeat=3))
    words = [b"", *(bytes([one]) for one in range(256))]
    words += itertools.islice(longer, max(vocab_size - len(words), 0))
    compiler = Compiler(Words.of(words, (), (0,), vocab_size))
    structure = Structure.of(STATED)
    return compiler.compile(write(structure, NO_LEAD), structure.kind)


def decode(started: Started, made: Grammar, rows: int, structured: int, number: int) -> Cells:
    """The table's row of `number` steps of decodes, so many of them structured; without the share
    of the rate of free ones.
    """
    core = started.core(prefix_caching=False)
    replies: dict[str, list[int]] = {}
    for row, prompt in enumerate(prompts(rows, _PROMPT, started.shaped.shape.vocab_size)):
        has_structure = row < structured
        sampling = SamplingParams(
            temperature=0.8,
            seed=row,
            ignore_eos=True,
            structure=Structure.of(STATED) if has_structure else None,
        )
        name = str(row)
        if has_structure:
            replies[name] = []
        core.add_request(
            Submission(request_id=name), prompt, sampling, None, made if has_structure else None
        )
    first, decoded = 0, 0
    for outputs in steps(core):
        for one in outputs:
            if one.request_id in replies:
                replies[one.request_id] += one.token_ids
        last = core.records.since(core.records.total - 1)
        if not decoded and last and last[0].decode_rows == rows:
            first = core.records.total
        decoded += first > 0
        if decoded > _WARM_UP + number:
            break
    records = core.records.since(first)[_WARM_UP:]
    core.abort_all()
    for _ in steps(core):
        if core.idle:
            break
    release(started, range(1, rows + 1))
    gaps = sorted(b.end - a.end for a, b in itertools.pairwise(records))
    step = statistics.median(gaps)
    masks = statistics.median(record.times.mask for record in records)
    return (
        started.shaped.name,
        str(rows),
        str(structured),
        f"{1e3 * step:.3f}",
        f"{1e3 * gaps[int(0.99 * (len(gaps) - 1))]:.3f}",
        f"{1e3 * masks:.3f}",
        f"{rows / step:,.0f}",
        f"{sum(_has(made, reply) for reply in replies.values())} of {len(replies)}",
    )


def _has(made: Grammar, reply: list[int]) -> bool:
    """Whether a reply follows its grammar, as far as it goes."""
    matcher = made.matcher()
    matcher.accept(reply)
    return bool(reply) and not matcher.has_failed
