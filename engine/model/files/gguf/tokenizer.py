"""build_tokenizer: builds the tokenizer that a GGUF file describes, with the ids of llama.cpp.

It is assembled from parts of the tokenizers library, so that no slow code and none of ours runs in
it. Source: llama.cpp's llama-vocab.cpp, as of llama-cpp-python 0.3.36.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from transformers import PreTrainedTokenizerFast

from engine.api.errors import ModelError
from engine.model.files import kept
from engine.model.files.gguf.splits import SPLITS, Split
from engine.text.table import Added, Texts, TokenTable

logger = logging.getLogger(__name__)

_KEY = "tokenizer.ggml."
_TEMPLATE = "tokenizer.chat_template"
_NAME = "general.name"
_OWN_KEYS = ("tokenizer.", _NAME)  # all keys that are read here
_DEFAULT = "default"

# Kinds of tokens, by their numbers in the file.
_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED = range(1, 6)
_FOUND_FIRST = (_UNKNOWN, _CONTROL, _USER)  # before the rest of a text is split

_SPACE = "\u2581"
_TABLE_BITS = 22
_MOST_PAIRS = 64 << 20  # bytes that are kept; 262,144 tokens have 4 MB
_KINDS = ("gpt2", "gemma4", "llama", "t5", "bert")
_RANKED = ("gpt2", "gemma4")
_JOINS_SPACES = "remove_extra_whitespaces"
_PADDING = re.compile(r"\[PAD(\d+)\]")

# The roles of tokens if the file does not state them, as in llama.cpp.
_DEFAULT_IDS: Mapping[str, Mapping[str, int]] = {
    "llama": {"bos": 1, "eos": 2, "unknown": 0},
    "t5": {"eos": 1, "unknown": 2, "padding": 0},
    "bert": {"bos": 101, "unknown": 100, "seperator": 102, "padding": 0, "mask": 103},
}

# Names of tokens that always end a generation: llama.cpp finds them by name, because files state
# too little, and treats them as control tokens whatever the file calls them.
_ENDS = frozenset(
    {
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>"),
        *("<|calls|>", "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>"),
        *("_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>"),
        *("<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~["),
    }
)
# These end the filling of a gap in code; the others mark its place.
_GAP_ENDS = frozenset(
    {
        *("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]", "<|fim_repo|>"),
        *("<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", "<|file_sep|>"),
    }
)
_GAPS = frozenset(
    {
        *("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>"),
        *("▁<PRE>", "<|code_prefix|>", "<|prefix|>", "<|fim_suffix|>", "<fim-suffix>"),
        *("<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>", "<|code_suffix|>", "<|suffix|>"),
        *("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>"),
        *("<|code_middle|>", "<|middle|>"),
    }
)
# It also ends struck-out text in HTML, which llama.cpp takes for an end too. Here it is an end only
# if the file calls it a control token.
_STRUCK = "</s>"
_CONTROLS = _ENDS | _GAP_ENDS | _GAPS
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def build_tokenizer(
    metadata: Mapping[str, Any], path: Path, pairs: Path | None = None
) -> PreTrainedTokenizerFast:
    """Build the tokenizer, with its chat templates.

    Args:
        metadata: the metadata from `engine.model.files.gguf.header`.
        path: the file, for errors.
        pairs: the folder in which pairs of tokens are kept for later loadings; None to keep none.

    Raises:
        ModelError: the file describes none, or an unsupported one.
    """
    return _Builder(metadata, path, pairs).build()


class TokenizerRecipe:
    """The data of a file's tokenizer: a process that unpickles it gets the tokenizer.

    Args: see `build_tokenizer`.
    """

    def __init__(self, metadata: Mapping[str, Any], path: Path, pairs: Path | None = None) -> None:
        self._metadata = metadata
        self._path = path
        self._pairs = pairs

    def build(self) -> PreTrainedTokenizerFast:
        """Build it here; see `build_tokenizer`."""
        return build_tokenizer(self._metadata, self._path, self._pairs)

    def table(self) -> TokenTable:
        """The tokens, for decoding: 0.1 s for 262,144 tokens, whose tokenizer takes 0.6.

        Raises:
            ModelError: see `build_tokenizer`.
        """
        return _Builder(self._metadata, self._path).table()

    def __reduce__(self) -> tuple[Any, ...]:
        own = {key: value for key, value in self._metadata.items() if key.startswith(_OWN_KEYS)}
        return build_tokenizer, (own, self._path, self._pairs)


def end_token_ids(metadata: Mapping[str, Any]) -> frozenset[int]:
    """The tokens that end a reply, by the file's metadata and by llama.cpp's list of names."""
    stored = metadata.get(f"{_KEY}tokens")
    if not isinstance(stored, Texts):
        return frozenset()
    tokens = stored.read()
    named = _ENDS | _GAP_ENDS
    found = {token: number for number, token in enumerate(tokens) if token in named}
    types = metadata.get(f"{_KEY}token_type")
    if isinstance(types, np.ndarray) and len(types) >= len(tokens):
        struck = found.get(_STRUCK)
        if struck is not None and types[struck] != _CONTROL:
            del found[_STRUCK]
    if "<|end|>" in found and (
        {"<|return|>", "<|call|>"} <= found.keys()
        or ("<|flush|>" in found and not found.keys().isdisjoint({"<|call|>", "<|calls|>"}))
    ):
        del found["<|end|>"]  # It ends a message there, and the reply continues with another one.
    stated = {metadata.get(f"{_KEY}{key}") for key in _END_KEYS}
    ids = {one for one in stated if type(one) is int and 0 <= one < len(tokens)}
    return frozenset(ids | set(found.values()))


class _Builder:
    """Builds the tokenizer of one file."""

    def __init__(self, metadata: Mapping[str, Any], path: Path, pairs: Path | None = None) -> None:
        self._metadata = metadata
        self._path = path
        self._kept_pairs = pairs
        self._kind = str(metadata.get(f"{_KEY}model"))
        self._tokens = self._read_tokens()
        self._types = self._read_types()
        self._ids = self._read_ids()
        if self._kind not in _KINDS:
            raise ModelError(
                f"{self._path} has a tokenizer of the kind {self._kind!r}; read are "
                f"{', '.join(_KINDS[:-1])} and {_KINDS[-1]}"
            )

    def table(self) -> TokenTable:
        tokens, missing = self._tokens, self._fillers()
        if self._kind == "bert":
            tokens = self._pieces()
            ids = dict(zip(tokens, range(len(tokens)), strict=True))
            missing = [number for number, token in enumerate(tokens) if ids[token] != number]
        return TokenTable(
            Texts.of([token.encode() for token in tokens]),
            missing,
            {
                number: Added(self._tokens[number], special)
                for number, special in self._found_first()
            },
            self._decoder(),
            chat_template=self._templates(),
            eos_token_id=self._ids.get("eos"),
        )

    def build(self) -> PreTrainedTokenizerFast:
        match self._kind:
            case "gpt2" | "gemma4":
                backend, adds_bos, adds_eos = self._bpe()
            case "llama":
                backend, adds_bos, adds_eos = self._sentencepiece(), True, False
            case "t5":
                backend, adds_bos, adds_eos = self._unigram(), False, True
            case _:
                backend, adds_bos, adds_eos = self._wordpiece(), True, False
        backend.decoder = self._decoder()
        self._add_tokens(backend)
        if self._kind == "bert":
            begins, ends = self._ids.get("bos"), self._ids.get("seperator")
        else:
            begins = self._ids.get("bos") if self._flag("add_bos_token", adds_bos) else None
            ends = self._ids.get("eos") if self._flag("add_eos_token", adds_eos) else None
        self._frame(backend, begins, ends)
        return self._wrap(backend)

    def _wrap(self, backend: Tokenizer) -> PreTrainedTokenizerFast:
        names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token"}
        names |= {"padding": "pad_token", "seperator": "sep_token", "mask": "mask_token"}
        stated = {
            name: self._tokens[self._ids[own]] for own, name in names.items() if own in self._ids
        }
        # The library copies a tokenizer by writing it as JSON and reading that, which takes a
        # second for 262,144 tokens. So it gets one without tokens first, and then ours.
        kind: Any = PreTrainedTokenizerFast
        found: PreTrainedTokenizerFast = kind(
            tokenizer_object=Tokenizer(models.BPE()),
            clean_up_tokenization_spaces=False,
            **stated,
        )
        found._tokenizer = backend
        found.chat_template = self._templates()
        return found

    def _templates(self) -> str | dict[str, str] | None:
        """The chat template, or several by name."""
        stated = self._metadata.get(_TEMPLATE)
        prefix = f"{_TEMPLATE}."
        named = {
            key.removeprefix(prefix): value
            for key, value in self._metadata.items()
            if key.startswith(prefix) and isinstance(value, str)
        }
        if not isinstance(stated, str):
            return named or None
        return {"default": stated, **named} if named else stated

    def _read_tokens(self) -> list[str]:
        stored = self._metadata.get(f"{_KEY}tokens")
        if not isinstance(stored, Texts) or not stored.count:
            raise ModelError(f"{self._path} has no tokenizer: {_KEY}tokens is missing")
        tokens = stored.read()
        if "" in tokens:
            tokens = [token or f"[EMPTY_{number}]" for number, token in enumerate(tokens)]
        if len(set(tokens)) != len(tokens):
            raise ModelError(f"{self._path} is corrupt: {_KEY}tokens has a token twice")
        return tokens

    def _read_types(self) -> np.ndarray[Any, Any]:
        """The kind of each token."""
        types = self._metadata.get(f"{_KEY}token_type")
        if types is None:
            return np.full(len(self._tokens), _NORMAL)
        if not isinstance(types, np.ndarray) or len(types) < len(self._tokens):
            raise ModelError(
                f"{self._path} is corrupt: {_KEY}token_type does not state a kind for each of the "
                f"{len(self._tokens)} tokens"
            )
        return types[: len(self._tokens)]

    def _read_ids(self) -> dict[str, int]:
        """The token for each role."""
        found = dict(_DEFAULT_IDS.get(self._kind, {}))
        for name in ("bos", "eos", "unknown", "seperator", "padding", "mask"):
            stated = self._metadata.get(f"{_KEY}{name}_token_id")
            if type(stated) is int and 0 <= stated < len(self._tokens):
                found[name] = stated
        return {name: one for name, one in found.items() if one < len(self._tokens)}

    def _flag(self, key: str, default: bool) -> bool:
        stated = self._metadata.get(f"{_KEY}{key}")
        return stated if isinstance(stated, bool) else default

    def _scores(self) -> np.ndarray[Any, Any]:
        scores = self._metadata.get(f"{_KEY}scores")
        if not isinstance(scores, np.ndarray) or len(scores) < len(self._tokens):
            raise ModelError(
                f"{self._path} is corrupt: {_KEY}scores does not state a score for each of the "
                f"{len(self._tokens)} tokens"
            )
        found: np.ndarray[Any, Any] = scores[: len(self._tokens)].astype(np.float64)
        return found

    def _vocabulary(self) -> dict[str, int]:
        return dict(zip(self._tokens, range(len(self._tokens)), strict=True))

    def _merges(self) -> list[tuple[str, str]]:
        """The pairs to join, by priority."""
        stated = self._metadata.get(f"{_KEY}merges")
        if not isinstance(stated, Texts):
            raise ModelError(f"{self._path} is corrupt: {_KEY}merges is missing")
        # A part may be or begin with a space, so the separator is searched from 1 on.
        pairs = [(one[:at], one[at + 1 :]) for one in stated.read() if (at := one.find(" ", 1)) > 0]
        return list(dict.fromkeys(pairs))

    def _bpe(self) -> tuple[Tokenizer, bool, bool]:
        """Pairs joined by rank: the tokenizer, and the tokens that it adds to a text by default."""
        split = self._split()
        vocabulary = self._vocabulary()
        for number in self._fillers():
            del vocabulary[self._tokens[number]]
        backend = Tokenizer(
            models.BPE(
                vocab=vocabulary,
                merges=self._merges(),
                ignore_merges=split.ignores_merges,
                byte_fallback=not split.in_bytes,
            )
        )
        cuts = [pre_tokenizers.Split(Regex(one), "isolated") for one in split.patterns]
        if split.in_bytes:
            backend.pre_tokenizer = pre_tokenizers.Sequence(
                [*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
            )
        else:
            backend.normalizer = normalizers.Replace(" ", _SPACE)
            backend.pre_tokenizer = pre_tokenizers.Sequence(cuts)
        return backend, split.adds_bos, False

    def _fillers(self) -> list[int]:
        """The ids by which llama.cpp's converter pads the embedding; they have no text."""
        if self._kind not in _RANKED:
            return []
        found = []
        for number in np.flatnonzero(self._types == _UNUSED).tolist():
            filler = _PADDING.fullmatch(self._tokens[number])
            if filler is not None and int(filler[1]) == number:
                found.append(number)
        return found

    def _decoder(self) -> decoders.Decoder:
        match self._kind:
            case "gpt2" | "gemma4":
                if self._split().in_bytes:
                    return decoders.ByteLevel()
                return _spaces_and_bytes(strips=False)
            case "llama" | "t5":
                return _spaces_and_bytes(strips=self._begins_with_space())
            case _:
                return decoders.WordPiece(cleanup=False)

    def _split(self) -> Split:
        if self._kind == "gemma4":
            return SPLITS["gemma4"]
        name = self._metadata.get(f"{_KEY}pre")
        if name is None:
            logger.warning(
                "%s does not say how text is split (%spre), so that tokens may not be those that "
                "the model was trained with",
                self._path,
                _KEY,
            )
            name = _DEFAULT
        if name not in SPLITS:
            raise ModelError(
                f"{self._path} splits text by {_KEY}pre {name!r}, which is unknown; known are "
                f"{', '.join(sorted(SPLITS))}"
            )
        return SPLITS[name]

    def _sentencepiece(self) -> Tokenizer:
        """Pairs joined by the score of the result.

        All pairs that make a token have its rank. Of two pairs of equal score, llama.cpp joins the
        left one, and this joins the one whose token has the smaller id; so a file in which all
        scores are equal is refused.
        """
        vocabulary = self._vocabulary()
        unknown = self._ids.get("unknown")
        backend = Tokenizer(
            models.BPE(
                vocab=vocabulary,
                merges=self._pairs(),
                byte_fallback=True,
                fuse_unk=True,
                unk_token=None if unknown is None else self._tokens[unknown],
            )
        )
        steps = [normalizers.Prepend(_SPACE)] if self._begins_with_space() else []
        backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
        return backend

    def _pairs(self) -> list[tuple[str, str]]:
        """All pairs of tokens that make a token, best first."""
        scores = self._scores()
        made = np.flatnonzero(~np.isin(self._types, _FOUND_FIRST))
        if len(made) > 1 and np.ptp(scores[made]) == 0:
            raise ModelError(
                f"{self._path} has {_KEY}scores that are all {scores[made[0]]:g}, which do not "
                "tell what is joined first"
            )
        order = made[np.argsort(-scores[made], kind="stable")]
        left, right = self._halves(order)
        token = self._tokens.__getitem__
        return list(zip(map(token, left), map(token, right), strict=True))

    def _halves(self, order: np.ndarray[Any, Any]) -> tuple[list[int], list[int]]:
        """The halves of `_halves`, which are kept for later loadings: half a million of them take
        0.4 s to find, and 10 ms to read.
        """

        def find() -> bytes:
            return np.stack(_halves(self._tokens, order)).astype("<i4").tobytes()

        if self._kept_pairs is None:
            found = find()
        else:
            digest = hashlib.sha256("\0".join(self._tokens).encode("utf-8", "surrogatepass"))
            digest.update(order.astype("<i4").tobytes())
            path = self._kept_pairs / digest.hexdigest()
            found = kept.content_of(path, find, most=_MOST_PAIRS)
        left, right = np.frombuffer(found, "<i4").reshape(2, -1).tolist()
        return left, right

    def _unigram(self) -> Tokenizer:
        """The likeliest of all segmentations of a text."""
        scores = self._scores()
        types = self._types
        # Tokens of other kinds never match text, and the user's always match theirs.
        least = scores[types == _NORMAL].min(initial=0.0)
        scores = np.where(types == _USER, 0.0, scores)
        scores = np.where(np.isin(types, (_NORMAL, _USER, _UNUSED)), scores, least - 1e4)
        backend = Tokenizer(
            models.Unigram(
                list(zip(self._tokens, scores.tolist(), strict=True)),
                unk_id=self._ids.get("unknown"),
                byte_fallback=False,
            )
        )
        steps: list[normalizers.Normalizer] = []
        charsmap = self._metadata.get(f"{_KEY}precompiled_charsmap")
        if isinstance(charsmap, np.ndarray) and len(charsmap):
            steps.append(normalizers.Precompiled(charsmap.tobytes()))
        if self._flag(_JOINS_SPACES, False):
            edges = normalizers.Replace(Regex(r"\A +| +\z"), "")
            steps += [edges, normalizers.Replace(Regex(" {2,}"), " ")]
        if self._begins_with_space():
            steps.append(normalizers.Prepend(_SPACE))
        backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
        return backend

    def _begins_with_space(self) -> bool:
        """Whether a space is put before a text to encode, and removed when it is decoded."""
        if self._kind == "llama":
            return self._flag("add_space_prefix", True)
        return self._flag("add_space_prefix", False) or self._flag(_JOINS_SPACES, False)

    def _wordpiece(self) -> Tokenizer:
        """The longest tokens, from left to right in each word."""
        unknown = self._ids.get("unknown")
        pieces = self._pieces()
        backend = Tokenizer(
            models.WordPiece(
                vocab=dict(zip(pieces, range(len(pieces)), strict=True)),
                unk_token="[UNK]" if unknown is None else self._tokens[unknown],
                max_input_chars_per_word=1 << 30,
            )
        )
        lowers = self._flag("normalizer.lowercase", True)
        backend.normalizer = normalizers.BertNormalizer(
            lowercase=lowers, strip_accents=self._flag("normalizer.strip_accents", lowers)
        )
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        return backend

    def _pieces(self) -> list[str]:
        """The tokens as WordPiece spells them: files mark the beginnings of words, where the
        library marks all other tokens.
        """
        return [
            token.removeprefix(_SPACE)
            if token.startswith(_SPACE) or kind != _NORMAL
            else f"##{token}"
            for token, kind in zip(self._tokens, self._types.tolist(), strict=True)
        ]

    def _add_tokens(self, backend: Tokenizer) -> None:
        """Register the tokens that are found before a text is split.

        Control tokens are never shown; the user's are text.
        """
        kinds: dict[bool, list[AddedToken]] = {True: [], False: []}
        for number, special in self._found_first():
            kinds[special].append(self._added(self._tokens[number], special))
        backend.add_special_tokens(kinds[True])
        backend.add_tokens(kinds[False])

    def _found_first(self) -> list[tuple[int, bool]]:
        """The tokens that are found before a text is split, and whether they are special."""
        named = _CONTROLS.intersection(self._tokens)
        if "<|tool_response>" in named:
            named -= {_STRUCK}
        wanted = set(np.flatnonzero(np.isin(self._types, _FOUND_FIRST)).tolist())
        wanted.update(number for number, token in enumerate(self._tokens) if token in named)
        kinds, special = self._types, named - {_STRUCK}
        return [
            (one, bool(kinds[one] in (_UNKNOWN, _CONTROL)) or self._tokens[one] in special)
            for one in sorted(wanted)
        ]

    def _added(self, token: str, special: bool) -> AddedToken:
        keeps = token in ("<unk>", "<s>", "<|endoftext|>")
        return AddedToken(
            token, normalized=False, special=special, rstrip=self._strips() and not keeps
        )

    def _strips(self) -> bool:
        """Whether added tokens swallow the white space after them; llama.cpp decides by name."""
        name = str(self._metadata.get(_NAME, "")).lower()
        return "phi-3" in name or "phi3" in name

    def _frame(self, backend: Tokenizer, begins: int | None, ends: int | None) -> None:
        """Add a token before each text, and one after it."""
        if begins is None and ends is None:
            return
        around = [[(self._tokens[one], one)] if one is not None else [] for one in (begins, ends)]
        first, last = ([token for token, _ in side] for side in around)
        backend.post_processor = processors.TemplateProcessing(
            single=[*first, "$A", *last],
            pair=[*first, "$A", *last, *first, "$B", *last],
            special_tokens=[pair for side in around for pair in side],
        )


def _halves(
    tokens: Sequence[str], order: np.ndarray[Any, Any]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """All ways to cut tokens into two other tokens, by hashes: a vocabulary of 262,144 tokens has
    1.5 million ways, and half a million of them result in tokens.

    Args:
        order: ids of the tokens to cut, in the order of the result.

    Returns:
        ids of their left and of their right halves. Equal hashes count as equal texts; if they are
        not, the library finds that a pair makes no token.
    """
    texts = "".join(tokens)
    codes = np.frombuffer(texts.encode("utf-32-le", "surrogatepass"), "<u4").astype(np.uint64)
    lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
    ends = np.cumsum(lengths)
    starts = ends - lengths
    # A text's hash is the sum of its codes times falling powers, modulo 2^64, wherever it is.
    factor = np.uint64(0x9E3779B97F4A7C15)
    powers = np.cumprod(np.full(len(codes) + 1, factor, np.uint64))
    inverse = np.uint64(pow(int(factor), -1, 1 << 64))
    falling = np.cumprod(np.full(len(codes) + 1, inverse, np.uint64))
    sums = np.zeros(len(codes) + 1, np.uint64)
    np.cumsum((codes + np.uint64(1)) * falling[:-1], out=sums[1:])

    def hashes(first: np.ndarray[Any, Any], last: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        found: np.ndarray[Any, Any] = (sums[last] - sums[first]) * powers[first]
        return found

    known = hashes(starts, ends)
    # Most tokens are alone in their entry of a table by the first bits; the others are searched.
    shift = np.uint64(64 - _TABLE_BITS)
    table = np.full(1 << _TABLE_BITS, -1, np.int32)
    table[known >> shift] = np.arange(len(tokens), dtype=np.int32)
    by_hash = np.argsort(known)
    ranked = known[by_hash]

    def tokens_of(wanted: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The id of each hash; -1 if there is none."""
        found: np.ndarray[Any, Any] = table[wanted >> shift]
        others = np.flatnonzero((found >= 0) & (known[found] != wanted))
        at = np.minimum(np.searchsorted(ranked, wanted[others]), len(ranked) - 1)
        found[others] = np.where(ranked[at] == wanted[others], by_hash[at], -1)
        return found

    ways = lengths[order] - 1
    whole = np.repeat(order, np.maximum(ways, 0))
    before = np.cumsum(np.maximum(ways, 0)) - np.maximum(ways, 0)
    cuts = starts[whole] + 1 + np.arange(len(whole)) - np.repeat(before, np.maximum(ways, 0))
    left = tokens_of(hashes(starts[whole], cuts))
    cut = np.flatnonzero(left >= 0)
    right = tokens_of(hashes(cuts[cut], ends[whole[cut]]))
    both = right >= 0
    return left[cut[both]], right[both]


def _spaces_and_bytes(*, strips: bool) -> decoders.Decoder:
    """The decoder of tokens that spell a space by its own letter, and bytes by number.

    Args:
        strips: whether to drop a space before the text.
    """
    steps: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if strips:
        steps.append(decoders.Strip(" ", 1, 0))
    return decoders.Sequence(steps)
