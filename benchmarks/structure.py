"""What it takes to keep replies to a structure: llguidance, which is used, beside xgrammar.

    python -m benchmarks.structure [--vocab 151936] [--megabytes 32] [--seconds 10]

The vocabularies are that of the built-in model, and one of `--vocab` tokens: byte-level BPE, which
is trained here on the text of the packages that are installed. Each structure is compiled by both
with nothing kept from before, and then a text that has it is gone through token by token: what the
mask of each token takes, and what it takes to go on to the next. Sampling with masks is that of the
engine, whose masks are computed beside a pause in the place of the forward pass. Hostile structures
are compiled, and 40 tokens of them followed, each in a process of its own that may take
`--seconds`; MiB is what its memory grew by. xgrammar is left out where it is not installed; `pip
install xgrammar` brings it, with what it needs.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import random
import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import requires, version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import psutil
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from app.process.columns import align
from benchmarks.heading import heading
from engine.api.errors import InvalidRequestError
from engine.api.sampling import SamplingParams
from engine.api.structure import Structure
from engine.batch.plan import NewSequence
from engine.builtin import MODEL_DIR
from engine.model.sampler import Sampler
from engine.structure.compiler import Compiler
from engine.structure.lead import NO_LEAD
from engine.structure.matcher import Matcher
from engine.structure.rules import write
from engine.structure.words import Words
from engine.text.encoder import ChatEncoder
from engine.text.vocabulary import Vocabulary

GREEDY = SamplingParams(temperature=0)
NUCLEUS = SamplingParams(temperature=0.8, top_p=0.95)
ORDER = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{6}$"},
        "customer": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "email": {"type": "string"}},
            "required": ["name"],
            "additionalProperties": False,
        },
        "lines": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "product": {"type": "string", "maxLength": 80},
                    "number": {"type": "integer", "minimum": 1, "maximum": 9999},
                    "colour": {"enum": ["red", "green", "blue", None]},
                },
                "required": ["product", "number"],
                "additionalProperties": False,
            },
            "minItems": 1,
            "maxItems": 50,
        },
        "paid": {"type": "boolean"},
    },
    "required": ["id", "customer", "lines", "paid"],
    "additionalProperties": False,
}
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["name", "children"],
            "additionalProperties": False,
        }
    },
}
WIDE = {
    "type": "object",
    "properties": {f"field_{n}": {"type": ["string", "number", "null"]} for n in range(100)},
    "required": [f"field_{n}" for n in range(0, 100, 2)],
    "additionalProperties": False,
}
_LEAVES = [{"name": f"leaf {n}", "children": []} for n in range(6)]
# What is stated, and a text that has it.
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "an order": (
        {"json_schema": ORDER},
        json.dumps(
            {
                "id": "AB-123456",
                "customer": {"name": "Ada Lovelace", "email": "ada@example.com"},
                "lines": [
                    {"product": f"wool blanket, number {n}", "number": n + 1, "colour": "red"}
                    for n in range(5)
                ],
                "paid": True,
            }
        ),
    ),
    "a tree": (
        {"json_schema": TREE},
        json.dumps({"name": "root", "children": [{"name": "branch", "children": _LEAVES}]}),
    ),
    "100 fields": (
        {"json_schema": WIDE},
        json.dumps({f"field_{n}": f"the value of {n}" for n in range(100)}),
    ),
    "1,000 values": (
        {"json_schema": {"enum": [f"value number {n} of a long list" for n in range(1000)]}},
        json.dumps("value number 777 of a long list"),
    ),
    "any JSON object": (
        {"json_object": True},
        json.dumps({"items": [{"text": "some words in a row", "n": 1.5e3}] * 5}),
    ),
    "a date and a time": (
        {"regex": r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?Z"},
        "2026-11-25T13:45:59.123456Z",
    ),
    "free words": ({"regex": r"([a-zA-Z]+[ .,!?]*){1,200}"}, "The cat is not on the mat. " * 6),
    "100 choices": (
        {"choice": [f"answer number {n}" for n in range(100)]},
        "answer number 42",
    ),
}
_LOOP = {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}
_ALL_OF: list[dict[str, Any]] = [
    {"anyOf": [{"properties": {f"p{i}{j}": {}}} for j in range(5)]} for i in range(12)
]
HOSTILE: dict[str, dict[str, Any]] = {
    "a loop of references": {"json_schema": {"$ref": "#/$defs/a", "$defs": _LOOP}},
    "5^12 combinations": {"json_schema": {"allOf": _ALL_OF}},
    "1,000,000 items at least": {
        "json_schema": {
            "type": "array",
            "items": {"type": "string"},
            "minItems": 10**6,
            "maxItems": 10**9,
        }
    },
    "1,000,000 characters at least": {
        "json_schema": {"type": "string", "minLength": 10**6, "maxLength": 10**9}
    },
    "4,000 optional fields": {
        "json_schema": {"type": "object", "properties": {f"p{n}": {} for n in range(4_000)}}
    },
    "counts of counts": {"regex": "((a{1,1000}){1,1000}){1,1000}"},
    "counts of classes": {"regex": r"(\p{L}{0,1000}\w{0,1000}){0,1000}"},
    "2^200 states": {"regex": "[ab]*a[ab]{200}"},
    "20,000 brackets": {"regex": "(" * 20_000 + "a" + ")" * 20_000},
}


class Follower(Protocol):
    """A reply that is followed by one of both."""

    def mask(self) -> np.ndarray[Any, Any]:
        """What it may say next: [words] int32."""
        ...

    def accept(self, token: int) -> None: ...


class Side(Protocol):
    """One of both, with a vocabulary."""

    def compile(self, stated: dict[str, Any]) -> Callable[[], Follower]:
        """What begins a reply that has a structure.

        Raises:
            Exception: there is none, or it is refused.
        """
        ...


class Ours:
    """llguidance, as the engine uses it."""

    def __init__(self, words: Words) -> None:
        from llguidance import LLExecutor

        self._compiler = Compiler(words)
        self._executor = LLExecutor(1)
        self._bits = np.empty((1, -(-len(words.utf8) // 32)), np.int32)

    def compile(self, stated: dict[str, Any]) -> Callable[[], Follower]:
        structure = Structure.of(stated)
        grammar = self._compiler.compile(write(structure, NO_LEAD), structure.kind)
        return lambda: _Ours(grammar.matcher(), self._bits, self._executor)


class _Ours:
    def __init__(self, matcher: Matcher, bits: Any, executor: Any) -> None:
        self._matcher, self._bits, self._executor = matcher, bits, executor

    def mask(self) -> np.ndarray[Any, Any]:
        Matcher.fill([self._matcher], self._bits, self._executor)
        bits: np.ndarray[Any, Any] = self._bits[0]
        return bits

    def accept(self, token: int) -> None:
        self._matcher.accept([token])


class Theirs:
    """xgrammar, with nothing kept between structures, and one thread."""

    def __init__(self, words: Words) -> None:
        import xgrammar

        self._xgrammar = xgrammar
        info = xgrammar.TokenizerInfo(
            list(words.utf8), vocab_size=len(words.utf8), stop_token_ids=list(words.ends)
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self._bits = np.empty((1, -(-len(words.utf8) // 32)), np.int32)

    def compile(self, stated: dict[str, Any]) -> Callable[[], Follower]:
        (kind, value), *_ = stated.items()
        if kind == "json_schema":
            compiled = self._compiler.compile_json_schema(json.dumps(value))
        elif kind == "json_object":
            compiled = self._compiler.compile_json_schema('{"type": "object"}')
        elif kind == "choice":
            choices = " | ".join(map(json.dumps, value))
            compiled = self._compiler.compile_grammar(f"root ::= {choices}")
        else:
            compiled = self._compiler.compile_regex(value)
        return lambda: _Theirs(self._xgrammar.GrammarMatcher(compiled), self._bits)


class _Theirs:
    def __init__(self, matcher: Any, bits: Any) -> None:
        self._matcher, self._bits = matcher, bits

    def mask(self) -> np.ndarray[Any, Any]:
        # It leaves the mask as it is where everything is allowed.
        if not self._matcher.fill_next_token_bitmask(self._bits):
            self._bits.fill(-1)
        bits: np.ndarray[Any, Any] = self._bits[0]
        return bits

    def accept(self, token: int) -> None:
        if not self._matcher.accept_token(token):
            raise RuntimeError(f"token {token} is not accepted")


SIDES: dict[str, Callable[[Words], Side]] = {"llguidance": Ours}
if importlib.util.find_spec("xgrammar") is not None:
    SIDES["xgrammar"] = Theirs


@dataclass(frozen=True)
class Vocab:
    """A vocabulary.

    Attributes:
        encode: makes the tokens of a text.
    """

    name: str
    words: Words
    encode: Callable[[str], list[int]]


def builtin() -> Vocab:
    """That of the built-in model."""
    return _of("built-in", AutoTokenizer.from_pretrained(MODEL_DIR), 0)


def trained(size: int, megabytes: int) -> Vocab:
    """Byte-level BPE of so many tokens; ids without a token are at its end, if it has fewer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        _texts(megabytes << 20),
        trainers.BpeTrainer(
            vocab_size=size,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=["<|end|>"],
            max_token_length=64,
            show_progress=False,
        ),
    )
    made = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, eos_token="<|end|>"
    )
    return _of(f"{size:,}", made, size)


def _texts(most: int) -> Iterator[str]:
    """The text of installed packages, so many bytes at most."""
    for path in sorted(Path(sysconfig.get_paths()["purelib"]).rglob("*.py")):
        text = path.read_text(errors="replace")
        most -= len(text)
        if most < 0:
            return
        yield text


def _of(name: str, tokenizer: Any, size: int) -> Vocab:
    vocabulary = Vocabulary(tokenizer)
    utf8 = ChatEncoder(tokenizer, name).words()
    ends = [tokenizer.eos_token_id]
    words = Words.of(utf8, vocabulary.special.keys(), ends, max(size, vocabulary.size))
    return Vocab(name, words, lambda text: tokenizer.encode(text, add_special_tokens=False))


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds that some work takes, and what it gives."""
    started = time.perf_counter()
    made = work()
    return time.perf_counter() - started, made


def measure(vocab: Vocab, rounds: int = 3) -> list[list[str]]:
    """A row for each structure and side; the best of some rounds, each from the beginning."""
    rows: list[list[str]] = []
    for name, make in SIDES.items():
        side: Side
        seconds, side = timed(partial(make, vocab.words))
        rows.append([vocab.name, "(the vocabulary)", name, f"{1e3 * seconds:.0f}", *[""] * 5])
        for case, (stated, text) in CASES.items():
            tokens = vocab.encode(text)
            try:
                best = min(timed(partial(side.compile, stated))[0] for _ in range(rounds))
                masks, moves = _follow(side.compile(stated)(), tokens)
            except Exception as error:
                rows.append([vocab.name, case, name, f"{type(error).__name__}", *[""] * 5])
                continue
            figures = (statistics.median(masks), _high(masks), max(masks), statistics.fmean(moves))
            rows.append(
                [
                    *(vocab.name, case, name, f"{1e3 * best:.1f}", str(len(masks))),
                    *(f"{1e6 * seconds:.0f}" for seconds in figures),
                ]
            )
    return rows


def _follow(follower: Follower, tokens: Sequence[int]) -> tuple[list[float], list[float]]:
    """What each mask took, and each move, for 10 s at most; the text is checked to be allowed."""
    masks: list[float] = []
    moves: list[float] = []
    for token in tokens:
        if sum(masks) > 10:
            break
        seconds, bits = timed(follower.mask)
        if not bits[token // 32] >> token % 32 & 1:
            raise RuntimeError(f"token {token} is not allowed")
        masks.append(seconds)
        moves.append(timed(partial(follower.accept, token))[0])
    return masks, moves


def _high(seconds: Sequence[float]) -> float:
    return sorted(seconds)[int(0.95 * (len(seconds) - 1))]


def sampling(vocab: Vocab, rows: int, rounds: int = 15) -> list[list[str]]:
    """What sampling takes in a step of so many rows, a row for each way: the best of some rounds,
    10 ms apart, in which a forward pass would run.
    """
    size = len(vocab.words.utf8)
    structure = Structure.of({"json_object": True})
    compiler = Compiler(vocab.words)
    grammar = compiler.compile(write(structure, NO_LEAD), structure.kind)
    logits = torch.randn(rows, size, generator=torch.Generator().manual_seed(0)) * 3
    index = np.arange(rows)
    table = []
    for name, params in (("greedy", GREEDY), ("temperature 0.8, top_p 0.95", NUCLEUS)):
        for made in (None, grammar):
            sampler = Sampler(max_num_seqs=rows, vocab_size=size, device="cpu")
            for row in range(rows):
                sampler.add(row, NewSequence(row, (0,), 1, params, row, (), (), made))
            best, waited = float("inf"), 0.0
            for step in range(rounds):
                time.sleep(0.01)
                work = partial(sampler.sample, logits.clone(), index, np.full(rows, 1 + step))
                seconds, sampled = timed(work)
                if seconds < best:
                    best, waited = seconds, sampled.waited
            what = "free" if made is None else "any JSON object"
            figures = (f"{1e3 * best:.2f}", f"{1e3 * waited:.2f}")
            table.append([vocab.name, str(rows), name, what, *figures])
    return table


def try_hostile(name: str, by: str) -> None:
    """Compile a hostile structure and follow 40 tokens; say how that went, in JSON."""
    side = SIDES[by](builtin().words)
    rng = random.Random(0)
    worst, outcome, before = 0.0, "followed", psutil.Process().memory_info().rss
    started = time.perf_counter()
    try:
        follower = side.compile(HOSTILE[name])()
        compiled = time.perf_counter() - started
        for _ in range(40):
            seconds, bits = timed(follower.mask)
            worst = max(worst, seconds)
            some = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little"))
            if not len(some):
                outcome = "given up"
                break
            follower.accept(int(rng.choice(some.tolist())))
    except InvalidRequestError:
        compiled, outcome = time.perf_counter() - started, "refused"
    except Exception:
        compiled, outcome = time.perf_counter() - started, "raised"
    grown = psutil.Process().memory_info().rss - before
    print(json.dumps([outcome, compiled, worst, grown]))


def hostile(seconds: float) -> list[list[str]]:
    """A row for each hostile structure and side."""
    rows = []
    for name, by in itertools.product(HOSTILE, SIDES):
        command = (sys.executable, "-m", "benchmarks.structure", "--hostile", name, "--by", by)
        try:
            # The process takes some seconds to start.
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 10)
        except subprocess.TimeoutExpired:
            rows.append([name, by, f"no end within {seconds:g} s", "", "", ""])
            continue
        if done.returncode:
            rows.append([name, by, f"ended by {done.returncode}", "", "", ""])
            continue
        outcome, compiled, worst, grown = json.loads(done.stdout.splitlines()[-1])
        figures = (f"{1e3 * compiled:.1f}", f"{1e3 * worst:.1f}", f"{grown >> 20}")
        rows.append([name, by, outcome, *figures])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--vocab", type=int, default=151_936)
    parser.add_argument("--megabytes", type=int, default=32, help="of text to train it on")
    parser.add_argument("--seconds", type=float, default=10.0, help="for a hostile structure")
    parser.add_argument("--hostile", choices=HOSTILE, help=argparse.SUPPRESS)
    parser.add_argument("--by", choices=SIDES, default="llguidance", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.hostile is not None:
        try_hostile(args.hostile, args.by)
        return
    needs = {name: sum("extra" not in one for one in requires(name) or ()) for name in SIDES}
    about = [f"{name} {version(name)} (needs {needs[name]} packages)" for name in SIDES]
    print(heading("1 thread each", *about))
    large = trained(args.vocab, args.megabytes)
    known = sum(map(bool, large.words.utf8))
    print(f"{known:,} of {args.vocab:,} ids have a token\n")
    head = ["vocabulary", "structure", "by", "compile ms", "tokens"]
    head += ["mask us", "p95", "max", "move us"]
    rows = [row for vocab in (builtin(), large) for row in measure(vocab)]
    print("\n".join(align([head, *rows], range(3, len(head)))))
    print()
    head = ["vocabulary", "rows", "sampled", "replies", "ms a step", "of them waiting"]
    rows = [row for number in (1, 32) for row in sampling(large, number)]
    print("\n".join(align([head, *rows], (1, 4, 5))))
    print()
    head = ["hostile, built-in vocabulary", "by", "outcome", "compile ms", "worst mask ms", "MiB"]
    print("\n".join(align([head, *hostile(args.seconds)], range(3, len(head)))))


if __name__ == "__main__":
    main()
