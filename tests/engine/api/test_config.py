"""The fixed envelope."""

from __future__ import annotations

import pytest

from engine.api.config import EngineConfig
from engine.api.errors import InvalidConfigError


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_blocks": 0}, "num_blocks is 0; it must be at least 1"),
        ({"block_size": -4}, "block_size is -4; it must be at least 1"),
        ({"max_model_len": 0}, "max_model_len is 0; it must be at least 1"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0; it must be at least 1"),
        (
            {"max_num_seqs": 9, "max_num_batched_tokens": 8},
            "max_num_batched_tokens is 8; it must be at least max_num_seqs (9), one decode token "
            "for each sequence",
        ),
        ({"dtype": "int8"}, "dtype is 'int8'; allowed are float32, bfloat16, float16"),
        ({"dtype": "auto"}, "dtype is 'auto'; allowed are float32, bfloat16, float16"),
    ],
)
def test_what_makes_no_sense(fields: dict[str, object], message: str) -> None:
    sound: dict[str, object] = {"num_blocks": 4, "max_model_len": 64}
    with pytest.raises(InvalidConfigError) as caught:
        EngineConfig(**(sound | fields))  # type: ignore[arg-type]
    assert caught.value.message == message
    assert caught.value.param in fields
