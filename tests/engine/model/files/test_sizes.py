"""Sizes of configurations against the weights beside them; hostile ones are in another file."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

from engine.api.errors import ModelError
from engine.model.files.checkpoint import Checkpoint, StoredTensor
from engine.model.files.sizes import check_elements, check_sizes
from tests.support.zoo import BY_MODULES, MIXED, OTHERS, SERVED, STATEFUL, tiny_model

FILE = Path("model.safetensors")
CONFIG = Path("config.json")


def checkpoint(**shapes: tuple[int, ...]) -> Checkpoint:
    """Of tensors of these shapes; `__` in a name is a dot."""
    tensors = []
    for name, shape in shapes.items():
        size = 2
        for side in shape:
            size *= side
        tensors.append(StoredTensor(name.replace("__", "."), FILE, "BF16", shape, 0, size))
    return Checkpoint(Path(), tuple(tensors), "")


@pytest.mark.parametrize("name", [*SERVED, *STATEFUL, *BY_MODULES, *MIXED, *OTHERS])
def test_every_model_of_the_zoo_fits_its_own_weights(name: str) -> None:
    model = tiny_model(name)
    stored = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    check_sizes(model.config.to_dict(), checkpoint(**stored), CONFIG)


def test_no_default_configuration_is_beyond_the_bounds() -> None:
    """Weights that allow anything leave the bounds that hold whatever the weights are."""
    vast = {f"layers.{at}.w": (1, 1) for at in range(2000)} | {"w": (1 << 24, 1)}
    weights = checkpoint(**vast)
    kinds = [
        kind
        for kind, config_class in CONFIG_MAPPING.items()
        if config_class in MODEL_FOR_CAUSAL_LM_MAPPING and not config_class.sub_configs
    ]
    assert len(kinds) > 100
    refused = {}
    for kind in kinds:
        try:
            check_sizes(CONFIG_MAPPING[kind]().to_dict(), weights, CONFIG)
        except ModelError as error:
            refused[kind] = error.message
    assert refused == {}


def test_layers_of_other_heads_beside_the_model_are_no_fault() -> None:
    """A checkpoint may bring layers that predict further tokens, numbered after the model's own."""
    weights = checkpoint(model__layers__0__w=(4, 4), model__layers__1__w=(4, 4))
    check_sizes({"num_hidden_layers": 1}, weights, CONFIG)
    with pytest.raises(ModelError, match=r"num_hidden_layers is 3; allowed .* from 1 to 2 "):
        check_sizes({"num_hidden_layers": 3}, weights, CONFIG)


def test_an_empty_tensor_lends_its_sides_to_nothing() -> None:
    weights = checkpoint(a=(2**40, 0), b=(4, 8))
    with pytest.raises(ModelError, match=r"vocab_size is 9; allowed .* from 1 to 8 "):
        check_sizes({"vocab_size": 9}, weights, CONFIG)


def test_layers_are_few_however_many_are_named() -> None:
    weights = checkpoint(**{f"layers.{at}.w": (4,) for at in range(2000)})
    with pytest.raises(ModelError, match="from 1 to 1024 "):
        check_sizes({"num_hidden_layers": 2000}, weights, CONFIG)


def test_a_size_for_each_layer_is_checked_each() -> None:
    weights = checkpoint(w=(8, 8))
    check_sizes({"num_key_value_heads": [1, 2], "head_dim": None}, weights, CONFIG)
    with pytest.raises(ModelError, match="num_key_value_heads is 9; "):
        check_sizes({"num_key_value_heads": [1, 9]}, weights, CONFIG)


def test_a_model_may_be_somewhat_larger_than_what_is_stored() -> None:
    """A missing tensor or a wrong shape is reported by name, once the weights are read."""
    weights = checkpoint(w=(1 << 20, 64))
    check_elements(3 << 26 >> 1, weights, CONFIG)
    with pytest.raises(ModelError, match="describes a model of 201,326,592 numbers; its weights"):
        check_elements(3 << 26, weights, CONFIG)
