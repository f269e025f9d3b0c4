"""Log-probabilities of text completions: no alternative is lost that has the text of another."""

from __future__ import annotations

import json
from typing import Any

from app.gateway.http.completions import CompletionForm
from app.gateway.http.protocol.completions import CompletionRequest
from app.gateway.http.replies import parts
from engine.api.client import Submission
from engine.api.lifecycle import FinishReason, Timings
from engine.api.logprobs import Candidate, OutputToken
from engine.api.stream import Delta, Finish, Usage

# (report, tokens as id and bytes with the chosen one first, its text, the keys of the likeliest)
CASES = [
    (
        "sgl-project/sglang#32290",
        [(7, b"\xe2\x80"), (8, b"\xe2\x81"), (9, b"\x9c")],
        r"bytes:\xe2\x80",
        [r"bytes:\xe2\x80", r"bytes:\xe2\x81", r"bytes:\x9c"],
    ),
    ("", [(5, b"A"), (70, b"A"), (6, b"B")], "A", ["A", "token_id:70", "B"]),
    ("", [(70, b"A"), (5, b"A"), (6, b"A")], "A", ["A", "token_id:5", "token_id:6"]),
    ("", [(1, "é".encode()), (2, b"\xc3"), (3, b"\xc3")], "é", ["é", r"bytes:\xc3", "token_id:3"]),
    ("", [(1, b""), (2, b""), (3, b" ")], "", ["", "token_id:2", " "]),
]


def told(tokens: list[tuple[int, bytes]]) -> dict[str, Any]:
    asked = CompletionRequest.model_validate_json('{"prompt": "x", "logprobs": 5}')
    form = CompletionForm(asked, "m", [Submission(prompt="x", request_id="r")])
    top = tuple(Candidate(*token, -float(at)) for at, token in enumerate(tokens))
    end = Finish(FinishReason.STOP, Usage(1, 1, 0), Timings())
    form.add_delta(0, Delta("x", 1, end, (OutputToken(top[0], 1, top),)))
    whole = json.loads(b"".join(parts(form.whole())))
    logprobs: dict[str, Any] = whole["choices"][0]["logprobs"]
    return logprobs


def test_each_alternative_has_a_key() -> None:
    for _, tokens, text, keys in CASES:
        got = told(tokens)
        assert got["tokens"] == [text]
        assert got["top_logprobs"] == [{key: -float(at) for at, key in enumerate(keys)}]
