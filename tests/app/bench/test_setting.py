from __future__ import annotations

import pytest

from app.bench.setting import Setting, parse_settings
from engine.api.errors import InvalidConfigError


def test_one_setting_is_named_by_its_policy() -> None:
    assert parse_settings([], []) == [Setting("stall_free", {})]
    assert parse_settings([], ["policy=static", "watermark=0.5"]) == [
        Setting("static", {"policy": "static", "watermark": 0.5})
    ]


def test_what_is_compared_goes_before_what_is_common() -> None:
    assert parse_settings(
        ["policy=static, static_batch_size=4", "prefix_caching=False"],
        ["policy=orca", "prefix_caching=true", "user_weights=anna=2,bob=1"],
    ) == [
        Setting(
            "policy=static, static_batch_size=4",
            {
                "policy": "static",
                "static_batch_size": 4,
                "prefix_caching": True,
                "user_weights": "anna=2,bob=1",
            },
        ),
        Setting(
            "prefix_caching=False",
            {"policy": "orca", "prefix_caching": False, "user_weights": "anna=2,bob=1"},
        ),
    ]


def test_a_policy_of_ones_own_is_named_by_its_class() -> None:
    (setting,) = parse_settings(["policy=engine.scheduling.policies.orca:Orca"], [])
    assert setting.changes == {"policy": "orca"}


@pytest.mark.parametrize(
    ("text", "message"),
    {
        "policy": "'policy' is not a knob; it must be name=value",
        "=4": "'=4' is not a knob; it must be name=value",
        "max_num_seqs=1.5": "max_num_seqs is '1.5'; it must be an integer",
        "watermark=much": "watermark is 'much'; it must be a number",
        "prefix_caching=1": "prefix_caching is '1'; it must be true or false",
    }.items(),
)
def test_a_value_of_another_type_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        parse_settings([text], [])
    assert caught.value.message == message
