"""Small vocabularies as GGUF files without tensors, texts that are hard to split, and the ids that
llama.cpp gives for them.

`expected.json` holds the pairs that the vocabularies join, and what llama.cpp made of each text.
Run as a program where llama-cpp-python 0.3.36 is installed, this module asks it again and writes
the file anew.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import gguf

VERSION = "llama-cpp-python 0.3.36"
EXPECTED = Path(__file__).with_name("expected.json")
SPECIAL = ("<|begin|>", "<|im_end|>", "<|im_start|>", "<|endoftext|>")
_CONTROL, _NORMAL, _UNKNOWN, _USER, _BYTE = 3, 1, 2, 4, 6
_BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))

# Of each kind of thing that one of the expressions tells apart, and of each plane of Unicode.
TEXTS = (
    "Steps:\n\n1. First",
    "Hello world  again   and    again",
    " \n \n\t x\r\n\r\n\r\nwin\r\nend \n",
    "\n\n\n\n",
    "trailing   ",
    "\t\tif a:\n\t\t    pass  # no\n",
    "I'm you're WE'LL they'd don't DON'T 'S it's 'ere d'accord",
    "it’s ‘quoted’ ſK’s 'ſ",
    "1234567890 12 345 6,789.01 3.14e-10 0x1F 1st",
    "123456 1234567 12345678 abc123def4567 a1b2",
    "١٢٣٤٥ १२३ ②③ ½ Ⅷ x²+y² H₂O",
    "a+b=c; x<=y && z||w ~^`$12.50!?",
    "{}[]()<>|\\/ ...!!!??? --- *** ___ ===",
    "!\n!\n\n?\r\n a/b//c///\n ://\n\nx",
    "CamelCaseWord XMLHttpRequest éÉàÀ ÀÉÎ straße Ǆǅǆ ΑΒΓαβγ АБВабв",
    "naïve e\u0301 n\u0303a a\u0308\u0301b \u0300alone",
    "日本語のテキスト、漢字とカタカナ。中文标点，！？「引号」",
    "한국어 텍스트 가나다ㄱㄴ ㄅㄆ",
    "ภาษาไทย ไม่มีช่องว่าง ລາວ ខ្មែរ မြန်မာ",
    "हिन्दी देवनागरी क्षत्रिय। বাংলা",
    "العربية نص طويل، مع علامات؟ שָׁלוֹם עברית",
    "😀😃 👨\u200d👩\u200d👧\u200d👦 🏳️\u200d🌈 👍🏽 🇫🇷🇩🇪",
    "\u200b zero\u200bwidth \ufeffbom\u00a0nbsp\u00a0\u00a0 \u3000wide\u2003em",
    "\u202ertl\u202c \x01\x02\x1b[31m\x7f \x85next \u2028line\u2029para",
    "𝔘𝔫𝔦 𝟘𝟙𝟚 𐍈 𠀀𠀁 🀄 \ue000 \U000f0000 \uffff\ufffd",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>a",
    " <|im_end|> <|im_end <|endoftext|>x",
    "<0x0A><0xFF>[INST]",
    "def f(x):\n    return x**2\n\n\n    y = \"a\" + 'b'\n",
    "http://example.com/path?q=1&r=%20#frag user@mail.com C:\\x\\y",
    "▁under ▁▁ score▁ ĠĊ ﬁ ™ © ° µ º",
    "aaaaaaaaaaaaaaaaaaaaaa",
    "— – «x» „y“ … €€ ££ ∑∫√ →← ★",
    "IMGIMGABCZ <sentinel:12>",
    "one two three four five six seven",
    "'tis 'dear l'dear 'TIS",
    "x  1   22    333",
    "a\n\nb\n \n\n\nc \n\n d",
)


@cache
def read_expected() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(EXPECTED.read_text())
    return found


def expected_ids(name: str) -> list[list[int]]:
    """llama.cpp's ids of each text with a vocabulary of that name."""
    data = read_expected()
    return [
        answers[which] for answers, which in zip(data["answers"], data["of"][name], strict=True)
    ]


def in_bytes(data: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of a vocabulary that is joined of bytes."""
    merges = data["merges in bytes"]
    # No pairs lead to the last one. It is found only where pieces that are tokens are not joined.
    joined = [one.replace(" ", "") for one in merges]
    tokens = [*SPECIAL, *data["letters of bytes"], *joined, "Ġseven"]
    types = [_CONTROL] * len(SPECIAL) + [_NORMAL] * (len(tokens) - len(SPECIAL))
    return {"model": "gpt2", "tokens": tokens, "types": types, "merges": merges}


def in_characters(data: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of a vocabulary that is joined of characters, with U+2581 for a space."""
    merges = data["merges in characters"]
    joined = [one.replace(" ", "") for one in merges]
    tokens = [*SPECIAL, *_BYTES, *data["characters"], *joined]
    types = [_CONTROL] * len(SPECIAL) + [_BYTE] * 256
    types += [_NORMAL] * (len(tokens) - len(types))
    return {"model": "gpt2", "tokens": tokens, "types": types, "merges": merges}


def by_score(data: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of a vocabulary that is joined by scores; <|im_end|> is the user's, and the first is
    for what is unknown."""
    keys = in_characters(data)
    keys["types"][:2] = [_UNKNOWN, _USER]
    number = len(keys["tokens"]) - len(keys["merges"])
    scores = [0.0] * number + [-1.0 - rank for rank in range(len(keys["merges"]))]
    return keys | {"model": "llama", "merges": None, "scores": scores, "unk": 0}


def by_likelihood(data: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of a vocabulary whose likeliest tokens are taken."""
    keys = by_score(data)
    keep = [number for number, kind in enumerate(keys["types"]) if kind != _BYTE]
    tokens = [keys["tokens"][number] for number in keep]
    scores = [-1.0 - (37 * rank % 101) / 10 for rank in range(len(keep))]
    types = [keys["types"][number] for number in keep]
    return {"model": "t5", "tokens": tokens, "types": types, "scores": scores, "unk": 0}


def of_words(data: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of a vocabulary of which the longest tokens are taken."""
    begins = [f"▁{letter}" for letter in (*"abcdefghijklmnopqrstuvwxyz0123456789", "日", "é", "!")]
    words = [f"▁{word}" for word in ("hello", "world", "again", "one", "first", "use")]
    ends = [*"abcdefghijklmnopqrstuvwxyz0123456789", "ing", "er"]
    tokens = ["[PAD]", "[UNK]", "[SEP]", "[MASK]", *begins, *words, *ends]
    types = [_CONTROL] * 4 + [_NORMAL] * (len(tokens) - 4)
    return {"model": "bert", "tokens": tokens, "types": types, "unk": 1, "seperator": 2}


# Vocabularies that no name of an expression tells apart.
KINDS = {
    "gemma4 kind": lambda data: in_characters(data) | {"model": "gemma4", "pre": "gemma4"},
    "no pre": lambda data: in_bytes(data) | {"pre": None},
    "by score": by_score,
    "by score, no prefix": lambda data: by_score(data) | {"add_space_prefix": False},
    "by likelihood": by_likelihood,
    "by likelihood, merging": lambda data: (
        by_likelihood(data) | {"add_space_prefix": True, "remove_extra_whitespaces": True}
    ),
    "of words": of_words,
}


def write_vocabulary(path: Path, keys: Mapping[str, Any]) -> None:
    """Write a GGUF file that holds a vocabulary and the sizes that llama.cpp asks for."""
    writer = gguf.GGUFWriter(path, "llama")
    for add, value in (
        (writer.add_context_length, 64),
        (writer.add_block_count, 1),
        (writer.add_embedding_length, 8),
        (writer.add_feed_forward_length, 8),
        (writer.add_head_count, 1),
        (writer.add_layer_norm_rms_eps, 1e-5),
        (writer.add_vocab_size, len(keys["tokens"])),
        (writer.add_tokenizer_model, keys["model"]),
        (writer.add_tokenizer_pre, keys.get("pre", "default")),
        (writer.add_token_list, keys["tokens"]),
        (writer.add_token_types, keys["types"]),
        (writer.add_token_scores, keys.get("scores")),
        (writer.add_token_merges, keys.get("merges")),
        (writer.add_bos_token_id, keys.get("bos", 0)),
        (writer.add_eos_token_id, keys.get("eos", 1)),
        (writer.add_unk_token_id, keys.get("unk")),
        (writer.add_sep_token_id, keys.get("seperator")),
        (writer.add_add_bos_token, keys.get("add_bos_token")),
        (writer.add_add_space_prefix, keys.get("add_space_prefix")),
        (writer.add_remove_extra_whitespaces, keys.get("remove_extra_whitespaces")),
    ):
        if value is not None:
            add(value)
    for key, value in keys.get("more", {}).items():
        (writer.add_uint32 if isinstance(value, int) else writer.add_string)(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def keys_of(name: str, data: Mapping[str, Any], characters: Sequence[str]) -> dict[str, Any]:
    """Keys of the vocabulary of a kind, or of one that is split by an expression's name."""
    if name in KINDS:
        return KINDS[name](data)
    keys = in_characters(data) if name in characters else in_bytes(data)
    return keys | {"pre": name}


def _ask(folder: Path) -> None:
    """Ask llama.cpp about all vocabularies of the file, and write its answers."""
    from llama_cpp import Llama

    data = json.loads(EXPECTED.read_text())
    answers: list[list[list[int]]] = [[] for _ in TEXTS]
    of = {}
    for name in data["of"]:
        path = folder / "vocabulary.gguf"
        write_vocabulary(path, keys_of(name, data, data["split in characters"]))
        model = Llama(str(path), vocab_only=True, verbose=False)
        of[name] = []
        for text, known in zip(TEXTS, answers, strict=True):
            ids = model.tokenize(text.encode(), add_bos=False, special=True)
            if ids not in known:
                known.append(ids)
            of[name].append(known.index(ids))
    data |= {"source": VERSION, "answers": answers, "of": of}
    EXPECTED.write_text(json.dumps(data, ensure_ascii=True, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    _ask(Path(sys.argv[1]))
