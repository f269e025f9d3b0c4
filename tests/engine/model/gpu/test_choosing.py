"""Which way products of few rows go, by a scripted clock; and that each way gives the same."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from engine.model.checks.gate import checked_forward
from engine.model.gpu import forward as verifying
from engine.model.gpu import products as module
from engine.model.gpu.choosing import choose, clock_on
from engine.model.gpu.forward import GpuForward
from engine.model.gpu.products import RUNGS, Choice, Product
from engine.model.gpu.program import GpuProgram
from engine.model.gpu.stream import HostStream
from engine.model.program.operations.linear import Gated, Linear
from engine.model.program.operations.norm import Norm
from engine.triton.product import MOST_ROWS, Strip, strips
from tests.engine.model.gpu.test_program import config_for, program_of, shape_of
from tests.support.zoo import SERVED, tiny_model

STRIP = Strip(16, 32, 4, 2)
OTHER = Strip(32, 32, 4, 2)


def one_strip(rows: int) -> tuple[Strip, ...]:
    return (STRIP,)


def products_of(name: str = "llama", **options: Any) -> list[Product]:
    return program_of(tiny_model(name, **options))._program.products


def test_a_choice_serves_the_rows_below_it_down_to_the_next() -> None:
    choice = Choice()
    choice.take(1, OTHER)
    choice.take(8, STRIP)
    found = [choice.of(rows) for rows in range(1, MOST_ROWS + 2)]
    assert found == [OTHER, None, None, None, *[STRIP] * 4, *[None] * 9]
    choice.take(8, None)
    assert choice.of(8) is None
    choice.take(6, STRIP)
    assert [choice.of(rows) for rows in (4, 5, 6, 7)] == [None, STRIP, STRIP, None]


def test_a_layer_of_llama_has_two_products_that_take_in_their_norm() -> None:
    products = products_of()
    assert [str(one.shape) for one in products[:4]] == [
        "norm, 96 x 48",
        "48 x 48, residual",
        "norm, 80 x 2 x 48, silu",
        "48 x 80, residual",
    ]
    assert products[-1].shape.has_norm, "the head"
    assert len({id(one.choice) for one in products}) == len({one.shape for one in products}) == 5


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gpt2", {}),  # LayerNorm
        ("gemma2", {"dtype": torch.float16}),  # too large before they are divided
    ],
)
def test_some_norms_stay_by_themselves(name: str, options: dict[str, Any]) -> None:
    assert not any(one.shape.has_norm for one in products_of(name, **options))


@pytest.fixture(scope="module")
def program() -> GpuForward:
    return program_of(tiny_model("llama"))


@pytest.fixture
def products(program: GpuForward) -> Iterator[list[Product]]:
    made = program._program.products
    yield made
    for one in made:
        one.choice.take(MOST_ROWS, None)
        for rows in (1, 2, 4, 8):
            one.choice.take(rows, None)


def by_clock(products: list[Product], gain: float) -> list[Product]:
    """Those that go by a strip which takes cuBLAS's time over `gain`."""
    seconds = itertools.cycle([1.0, 1.0 / gain])
    choose(products, lambda work: next(seconds), one_strip)
    return [one for one in products if one.choice.of(1) is not None]


def test_the_faster_way_is_taken(products: list[Product]) -> None:
    assert by_clock(products, 1.2) == products
    assert all(one.choice.of(7) == STRIP for one in products)


@pytest.mark.parametrize("gain", [1.0, 1.02])
def test_no_strip_is_taken_for_less_than_two_measurements_differ_by(
    products: list[Product], gain: float
) -> None:
    assert by_clock(products, gain) == []


def test_of_two_strips_the_faster_is_taken(products: list[Product]) -> None:
    seconds = itertools.cycle([1.0, 0.5, 0.4])
    found = choose(products, lambda work: next(seconds), lambda rows: (STRIP, OTHER))
    assert all(one.choice.of(1) == OTHER for one in products)
    assert {(one.strip, one.is_taken) for one in found} == {(OTHER, True)}
    # Those of three layers were timed together.
    assert {one.by_strip for one in found} == {0.4 / 3, 0.4}


def test_what_computes_something_else_is_not_taken(
    products: list[Product], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    right = module.product

    def wrong(out: torch.Tensor, *arguments: Any, **named: Any) -> None:
        right(out, *arguments, **named)
        out[-1] *= 1.1

    monkeypatch.setattr(module, "product", wrong)
    with caplog.at_level(logging.INFO):
        assert by_clock(products, 2.0) == []
    assert "computes something else than cuBLAS" in caplog.text
    assert "1 rows by cuBLAS" in caplog.text


def test_what_does_not_fit_the_gpu_is_not_taken(
    products: list[Product], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*arguments: Any, **named: Any) -> None:
        raise RuntimeError("out of resources: shared memory")

    monkeypatch.setattr(module, "product", failing)
    assert by_clock(products, 2.0) == []


def test_every_strip_is_right_on_a_models_products(
    products: list[Product], caplog: pytest.LogCaptureFixture
) -> None:
    seconds = itertools.count(100, -1)
    found = choose(products, lambda work: next(seconds))
    assert {one.strip for one in found} == {strips(1)[-1]}
    assert "computes something else" not in caplog.text
    for one in products:  # what was tried out has left nothing behind
        assert not one.operands.out.any()
        assert not one.operands.x.any()


def test_the_clock_takes_the_median_of_what_the_device_took() -> None:
    times = iter([9.0, 3.0, 1.0, 2.0, 9.0, 9.0, 1.0, 4.0])

    class Scripted(HostStream):
        def enqueue(self, work: Callable[[], object]) -> Any:
            return SimpleNamespace(wait=lambda: next(times))

    assert clock_on(Scripted())(lambda: None) == 3.0


def multiply(program: GpuForward, rows: int) -> None:
    """Launch the norms and products of a step, which ask only how many rows it has."""
    step: Any = SimpleNamespace(ids=range(rows), last_tokens=range(rows))
    for stage in program._program.stages:
        if isinstance(stage.operation, Norm | Linear | Gated):
            program._program.run(step, stage.first, stage.last)


def test_a_norm_is_not_launched_where_its_product_takes_it_in(
    products: list[Product], program: GpuForward, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.model.gpu import launches

    normed: list[int] = []
    norm = launches.norm

    def watched(out: torch.Tensor, *arguments: Any) -> None:
        normed.append(len(out))
        norm(out, *arguments)

    monkeypatch.setattr(launches, "norm", watched)
    by_clock(products, 2.0)
    normed.clear()
    multiply(program, 3)
    assert normed == []
    for one in products:
        one.choice.take(4, None)
    multiply(program, 3)
    assert normed == [3] * 7


# One with norms that products take in, biases and a gate.
SHORT = ("qwen2",)


@pytest.mark.parametrize(
    "name",
    [
        name if name in SHORT else pytest.param(name, marks=pytest.mark.long)
        for name in sorted(SERVED)
    ],
)
@pytest.mark.usefixtures("short_scripts")
def test_every_architecture_passes_the_gate_by_strips(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All steps of few rows go by strips."""
    taken: list[tuple[int, Strip]] = []
    verify, compute = verifying._verify, module.product

    def verified(forward: GpuForward, program: GpuProgram, *arguments: Any) -> float:
        worst = verify(forward, program, *arguments)
        for one in program.products:
            for rows in RUNGS:
                one.choice.take(rows, strips(rows)[0])
        return worst

    def watched(
        out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, strip: Strip, **named: Any
    ) -> None:
        taken.append((len(out), strip))
        compute(out, x, weight, strip, **named)

    monkeypatch.setattr(verifying, "_verify", verified)
    monkeypatch.setattr(module, "product", watched)
    model = tiny_model(name)
    forward = checked_forward(model, config_for(model), shape_of(model), "triton")
    assert isinstance(forward, GpuForward)
    assert taken
    assert all(strip == strips(rows)[0] for rows, strip in taken)
