"""The rule by which outputs agree, on a model whose logits are known."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.coverage.build import build
from benchmarks.coverage.compare import Reference, compare, compare_coarse
from benchmarks.coverage.requests import make_prompts
from benchmarks.coverage.rows import Kind, Row

# Tiny operators gain nothing from a second thread and lose much where the cores are shared.
torch.set_num_threads(1)

PROMPTS = make_prompts()[1:4]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    built = build(Row(Kind.TEXT, "llama"), tmp_path_factory.mktemp("llama"))
    return Reference(Path(built.reference), torch.float32)


@pytest.fixture(scope="module")
def outputs(reference: Reference) -> list[list[int]]:
    return [reference.generate(prompt) for prompt in PROMPTS]


def test_the_models_own_tokens_are_equal_and_close(
    reference: Reference, outputs: list[list[int]]
) -> None:
    found = compare(reference, PROMPTS, outputs)
    assert (found.agrees, found.result, found.note) == (True, "equal", "")
    assert compare_coarse(reference, PROMPTS, outputs).agrees


def test_one_wrong_token_differs(reference: Reference, outputs: list[list[int]]) -> None:
    wrong = [list(output) for output in outputs]
    wrong[1][5] = (wrong[1][5] + 1) % 512
    found = compare(reference, PROMPTS, wrong)
    assert not found.agrees
    assert found.result.startswith("differs: 2/3 equal")


def test_tokens_at_random_are_not_close(reference: Reference, outputs: list[list[int]]) -> None:
    found = compare_coarse(reference, PROMPTS, outputs[1:] + outputs[:1])
    assert not found.agrees


def test_a_token_just_below_the_best_is_a_tie(
    reference: Reference, outputs: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = [[*output[:-1], output[-1] - 1] for output in outputs]
    for gap, word, agrees in ((9e-5, "tie", True), (2e-4, "differs", False)):
        monkeypatch.setattr(reference, "below", lambda *_, gap=gap: ([0.0, gap], [0.0, gap]))
        found = compare(reference, PROMPTS, wrong)
        assert (found.result.split(":")[0], found.agrees) == (word, agrees)
