"""A packed step taken apart for modules with states, and put together again."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.model.state.groups import gather, groups_of, scatter

ROWS = st.lists(st.tuples(st.sampled_from((0, 0, 3, 20)), st.integers(1, 5)), min_size=1)
CPU = torch.device("cpu")


@given(rows=ROWS)
def test_every_token_is_in_one_group_with_its_sequence(rows: list[tuple[int, int]]) -> None:
    starts, counts = (np.array(column) for column in zip(*rows, strict=True))
    index = np.arange(len(rows))[::-1] + 7
    total = int(counts.sum())
    sequence = np.repeat(index, counts)
    position = np.concatenate([start + np.arange(count) for start, count in rows])
    seen: list[int] = []
    for group in groups_of(index, starts, counts, CPU):
        seen += group.tokens.flatten().tolist()
        for slot, tokens in zip(group.sequences.slots.tolist(), group.tokens.numpy(), strict=True):
            assert set(sequence[tokens]) == {slot}
            assert (np.diff(position[tokens]) == 1).all()
            assert (position[tokens[0]] == 0) == group.sequences.are_new
    assert sorted(seen) == list(range(total))


def test_all_decodes_are_one_group() -> None:
    groups = groups_of(np.arange(5), np.array([4, 9, 9, 30, 0]), np.array([1, 1, 1, 3, 3]), CPU)
    assert sorted(tuple(group.tokens.shape) for group in groups) == [(1, 3), (1, 3), (3, 1)]


def test_token_by_token_only_the_first_is_new() -> None:
    (group,) = groups_of(np.array([3]), np.array([0]), np.array([3]), CPU)
    parts = list(group.tokenwise())
    assert [part.tokens.tolist() for part in parts] == [[[0]], [[1]], [[2]]]
    assert [part.sequences.are_new for part in parts] == [True, False, False]


@given(rows=ROWS)
def test_what_is_taken_apart_is_put_together(rows: list[tuple[int, int]]) -> None:
    starts, counts = (np.array(column) for column in zip(*rows, strict=True))
    total = int(counts.sum())
    hidden, angles = torch.randn(1, total, 4), torch.randn(1, total, 2, 3)
    whole = None
    for group in groups_of(np.arange(len(rows)), starts, counts, CPU):
        one, (other, flag) = gather((hidden, (angles, "flag")), group.tokens, total)
        assert one.shape == (*group.tokens.shape, 4)
        assert flag == "flag"
        whole = scatter(whole, (one, None, other), group.tokens, total)
    assert whole is not None
    assert torch.equal(whole[0], hidden)
    assert whole[1] is None
    assert torch.equal(whole[2], angles)


def test_what_belongs_to_no_token_is_left_as_it_is() -> None:
    tokens = torch.tensor([[0, 2]])
    weight, mask = torch.ones(3, 5), None
    assert gather(weight, tokens, 3) is weight
    assert gather(mask, tokens, 3) is None
