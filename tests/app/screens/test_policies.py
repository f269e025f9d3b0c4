from __future__ import annotations

from app.screens.policies import policy_meanings
from engine.scheduling.policies import policy_names


def test_each_policy_is_told_in_one_sentence() -> None:
    meanings = policy_meanings()
    assert tuple(meanings) == policy_names()
    for meaning in meanings.values():
        assert meaning.endswith(".")
        assert 20 < len(meaning) < 90
