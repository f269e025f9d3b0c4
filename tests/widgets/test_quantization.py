from __future__ import annotations

from dataclasses import replace

from engine.api.status import QuantizationLoss
from tests.widgets.samples import MODEL
from widgets.quantization import briefly, in_full, loss_in_full, shortly

INT8 = replace(MODEL, quantize="int8")
MEASURED = replace(INT8, loss=QuantizationLoss(2048, 0.989, 0.00131))


def test_a_model_that_is_not_quantized_has_nothing_to_tell() -> None:
    assert [tell(MODEL) for tell in (briefly, shortly, in_full)] == ["", "", ""]


def test_a_loss_that_was_not_measured_is_left_out() -> None:
    told = [tell(INT8) for tell in (briefly, shortly, in_full)]
    assert told == ["int8", "int8", "weights quantized to int8"]


def test_the_more_room_the_more_is_told_of_a_loss() -> None:
    assert briefly(MEASURED) == "int8 98.9%"
    assert shortly(MEASURED) == "int8, 98.9% equal best"
    assert in_full(MEASURED) == (
        "weights quantized to int8: after 98.9% of 2,048 tokens the likeliest next token stays the"
        " same; divergence 0.0013 nats a token"
    )


def test_weights_that_stay_packed_are_told_by_their_format() -> None:
    fp8 = replace(MODEL, packed_as="fp8", rounded_to="int8")
    assert briefly(fp8) == "fp8 as int8"
    assert in_full(fp8) == "weights of fp8 rounded to int8, activations to 15 bits"
    awq = replace(MODEL, packed_as="awq", loss=QuantizationLoss(256, 0.996, 0.0002))
    assert briefly(awq) == "awq 99.6%"
    assert shortly(awq) == "awq, 99.6% equal best"
    assert in_full(awq) == (
        "weights stay packed as awq has them, activations take 15 bits: after 99.6% of 256 tokens"
        " the likeliest next token stays the same; divergence 0.0002 nats a token"
    )


def test_a_divergence_that_is_next_to_none_is_told_as_that() -> None:
    assert loss_in_full(QuantizationLoss(9, 1.0, 0.00002)) == (
        "the likeliest next token stays the same after 100% of 9 tokens, divergence below 0.0001"
        " nats a token"
    )
    assert loss_in_full(QuantizationLoss(9, 0.5, 1.234)).endswith("divergence 1.2 nats a token")
