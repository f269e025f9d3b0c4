from __future__ import annotations

from array import array

from engine.api.logprobs import PromptLogprobs, TokenLogprobs

PACKED = PromptLogprobs(
    first=5,
    token_ids=array("I", [7, 8, 9]),
    logprobs=array("f", [-0.5, -1.0, -2.0]),
    ranks=array("I", [1, 2, 3]),
    number=2,
    top_ids=array("I", [7, 1, 2, 8, 3, 4]),
    top=array("f", [-0.5, -3.0, -0.25, -1.0, -0.125, float("-inf")]),
)
TOLD = [
    (7, TokenLogprobs(-0.5, 1, ((7, -0.5), (1, -3.0)))),
    (8, TokenLogprobs(-1.0, 2, ((2, -0.25), (8, -1.0)))),
    (9, TokenLogprobs(-2.0, 3, ((3, -0.125),))),  # the model rules out what comes next
]


def test_each_token_has_its_own() -> None:
    assert list(PACKED) == TOLD
    assert PACKED.end == 8


def test_those_from_a_place_on() -> None:
    for place, skipped in ((0, 0), (5, 0), (6, 1), (7, 2), (8, 3), (99, 3)):
        rest = PACKED.behind(place)
        assert list(rest) == TOLD[skipped:]
        assert (rest.first, rest.end) == (5 + skipped, 8)
