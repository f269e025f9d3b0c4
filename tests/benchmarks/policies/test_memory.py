"""The memory that forks share, against blocks counted by hand."""

from __future__ import annotations

import pytest

from benchmarks.policies.burst import original_box
from benchmarks.policies.memory import Sampled, sample


@pytest.mark.parametrize(
    ("fork", "expected"),
    [
        # 20 + 12 tokens are 2 blocks of 16; each computes the prompt and all outputs but the last.
        (False, Sampled(blocks=4 * 2, tokens=4 * (20 + 11))),
        # The first block is shared, the second copied; a fork computes the prompt's last token.
        (True, Sampled(blocks=1 + 4, tokens=20 + 3 + 4 * 11)),
    ],
)
def test_forks_share_the_full_blocks_of_the_prompt(fork: bool, expected: Sampled) -> None:
    assert sample(original_box(), 4, 20, 12, fork=fork) == expected
