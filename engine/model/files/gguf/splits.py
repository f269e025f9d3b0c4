"""Splits: where a text is cut before its pairs are merged, by the names of tokenizer.ggml.pre.

Each name that llama.cpp writes is listed with the expressions by which llama.cpp cuts, in sequence:
each match is a piece, each rest between matches is another, and the next expression cuts each
piece. Source: llm_tokenizer_bpe and unicode_regex_split in llama.cpp's llama-vocab.cpp and
unicode.cpp, as of llama-cpp-python 0.3.36. They are written for Oniguruma, which tokenizers uses.
llama.cpp does not distinguish upper case from lower case outside ASCII, and neither do these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

# 's, 't, 're and so on; in Oniguruma (?i:'s) would also match a long s.
_ENDINGS = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_PATH_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LLAMA3 = rf"{_ENDINGS}|{_WORD}|\p{{N}}{{1,3}}|{_TAIL}"
_QWEN2 = rf"{_ENDINGS}|{_WORD}|\p{{N}}|{_TAIL}"
_ASCII_MARKS = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
_DEEPSEEK_TAIL = r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_DEEPSEEK_WORD = rf"{_ASCII_MARKS}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
_CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_DEEPSEEK3 = (r"\p{N}{1,3}", _CJK, rf"{_DEEPSEEK_WORD}|{_DEEPSEEK_TAIL}")
# llama.cpp excludes white space outside ASCII from such a range.
_OLD_CJK = "[[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]&&[^\\s]]+"
# Digits in threes from the right, the first group with everything before it.
_THREES = r"[^\p{N}]*(?:\p{N}{1,2}(?=(?:\p{N}{3})*(?!\p{N}))|\p{N}{3})"


def _cased(upper: str, lower: str, end: str) -> str:
    """Words that may begin with capitals, and their possible endings."""
    return (
        rf"[^\r\n\p{{L}}\p{{N}}]?(?:{upper})*(?:{lower})+{end}"
        rf"|[^\r\n\p{{L}}\p{{N}}]?(?:{upper})+(?:{lower})*{end}"
    )


_LETTERS = _cased(r"(?=\p{L})[^a-z]", r"(?=\p{L})[^A-Z]", "")
_LETTERS_ENDED = _cased(r"(?=\p{L})[^a-z]", r"(?=\p{L})[^A-Z]", f"(?:{_ENDINGS})?")
_MARKED_ENDED = _cased(r"(?=[\p{L}\p{M}])[^a-z]", r"(?=[\p{L}\p{M}])[^A-Z]", f"(?:{_ENDINGS})?")
_ANY_ENDED = _cased(r"[\p{L}\p{M}]", r"[\p{L}\p{M}]", f"(?:{_ENDINGS})?")
_HAN = (
    "\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df\U0002a700-\U0002b73f\U0002b740-\U0002b81f"
    "\U0002b820-\U0002ceaf\U0002ceb0-\U0002ebef\uf900-\ufaff\U0002f800-\U0002fa1f"
)
_NO_HAN = rf"[\p{{L}}&&[^{_HAN}]]"
_DEEPSEEK_LETTERS = (
    "\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
    "\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5"
    "\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3"
    "\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115"
    "\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3"
    "\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f"
    "\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_YOUTU_MARKS = (
    "\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f"
)
_ASIAN = (
    "\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f"
    "\u2f00-\u2fdf\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f"
    "\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff"
)
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_LINES = r"[^\n]+|\n+"


@dataclass(frozen=True, slots=True)
class Split:
    """How the texts of a vocabulary are cut, and what else its name implies.

    Attributes:
        patterns: the expressions, in order.
        ignores_merges: whether a piece that is a token is never assembled from others.
        adds_bos: whether texts begin with the token that begins a sequence, if the file does not
            state it.
        in_bytes: whether pieces are spelled in GPT-2's letters for bytes; else in UTF-8, with
            U+2581 for a space.
    """

    patterns: tuple[str, ...]
    ignores_merges: bool = False
    adds_bos: bool = False
    in_bytes: bool = True


_gpt2 = Split((_GPT2,))
_llama3 = Split((_LLAMA3,), ignores_merges=True, adds_bos=True)
_digits = Split((r"\p{N}", _GPT2))
_qwen2 = Split((_QWEN2,))
_chatglm = Split((_LLAMA3,))
_gpt4o = Split((rf"{_LETTERS_ENDED}|\p{{N}}{{1,3}}|{_PATH_TAIL}",))
_deepseek3 = Split(_DEEPSEEK3)
_bloom = Split((_BLOOM,))
_lines = Split((_LINES,), in_bytes=False)
_aya = Split((_THREES, rf"{_ANY_ENDED}|\p{{N}}{{1,3}}|{_PATH_TAIL}"))

SPLITS: Mapping[str, Split] = {
    "default": Split((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    **dict.fromkeys(
        (
            *("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0"),
            *("lfm2", "jina-v5-nano"),
        ),
        _llama3,
    ),
    **dict.fromkeys(
        (
            *("gpt-2", "phi-2", "jina-es", "jina-de", "gigachat", "jina-v2-es", "jina-v2-de"),
            *("a.x-4.0", "mellum", "modern-bert", "exaone4", "mpt", "olmo", "jais", "trillion"),
            *("granite-docling", "jina-v1-en", "jina-v2-code", "roberta-bpe"),
        ),
        _gpt2,
    ),
    **dict.fromkeys(
        (
            *("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"),
            "mellum2",
        ),
        _digits,
    ),
    **dict.fromkeys(
        (
            *("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan"),
            *("solar-open", "grok-2", "bailingmoe", "bailingmoe2", "llada-moe"),
        ),
        _qwen2,
    ),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), _gpt4o),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), _deepseek3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), _chatglm),
    **dict.fromkeys(("glm4", "glm5"), replace(_chatglm, ignores_merges=True)),
    **dict.fromkeys(("poro-chat", "bloom", "gpt3-finnish"), _bloom),
    **dict.fromkeys(("tiny_aya", "cohere2moe"), _aya),
    # llama.cpp starts these with that token whatever the file says.
    **dict.fromkeys(("gemma4", "granite-embed-multi-311m"), replace(_lines, adds_bos=True)),
    "sarvam-moe": _lines,
    "viking": Split((_BLOOM, r"\p{N}")),
    "falcon": Split((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "tekken": Split((rf"{_LETTERS}|\p{{N}}|{_PATH_TAIL}",), ignores_merges=True, adds_bos=True),
    "granite-embed-multi-97m": Split(
        (rf"{_MARKED_ENDED}|\p{{N}}{{1,3}}|{_PATH_TAIL}",), ignores_merges=True
    ),
    "qwen35": Split(
        (
            rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
            r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        )
    ),
    "jais-2": Split(
        (
            rf"{_ENDINGS}|{_WORD}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+"
            r"|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)"
            r"|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s",
        )
    ),
    "minicpm5": Split(
        (r"\p{N}{1,3}", rf"{_ENDINGS}|{_WORD}|\p{{N}}+|{_TAIL}"), ignores_merges=True
    ),
    "deepseek-llm": Split(
        (
            r"[\r\n]",
            rf"\s?[A-Za-z{_DEEPSEEK_LETTERS}]+",
            "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3001-\u3002]+",
            r"\s+\z",
            _OLD_CJK,
            r"\p{N}+",
        )
    ),
    "deepseek-coder": Split((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _OLD_CJK, r"\p{N}")),
    "spark2_5": Split(
        (
            *(r"\p{N}{1,3}", _CJK),
            rf"{_DEEPSEEK_WORD}| ?[\p{{P}}\p{{S}}]+|[\r\n]|\s+(?!\S)|\s+",
            r"\p{N}",
        )
    ),
    "youtu": Split(
        (
            f"[\uac00-\ud7a3\u3131-\u318e]+|[{_YOUTU_MARKS}]+|[\u3105-\u312f]+|{_CJK}",
            rf"{_ANY_ENDED}|\p{{N}}|{_PATH_TAIL}",
        ),
        ignores_merges=True,
    ),
    "chameleon": Split(
        (
            *("<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", r"[\t\n]|    |  ", r"\p{N}"),
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2,
        ),
        adds_bos=True,
    ),
    "kimi-k2": Split(
        (rf"[{_HAN}]+|[^\r\n\p{{L}}\p{{N}}]?{_NO_HAN}+(?:{_ENDINGS})?|\p{{N}}{{1,3}}|{_TAIL}",)
    ),
    "superbpe": Split((r"\p{N}+", r"[0-9]{3}(?=(?:[0-9]{3})*(?![0-9]))")),
    "seed-coder": Split(
        (rf"{_ENDINGS}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",)
    ),
    "ufakzeka": Split((rf"{_WORD}|\p{{N}}|{_TAIL}",)),
    "afmoe": Split((_THREES, f"[{_ASIAN}]+", rf"{_DEEPSEEK_WORD}|{_DEEPSEEK_TAIL}")),
    "laguna": Split((r"[^\n]+|\n+", _QWEN2)),
    "exaone-moe": Split(
        (
            rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        )
    ),
}
